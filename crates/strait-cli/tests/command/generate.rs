//! `strait generate` and `strait demo`.

use crate::sandbox::Sandbox;

#[test]
fn tpch_joins_to_the_rows_of_lineitem() {
    let sandbox = Sandbox::new();
    let run = sandbox.strait("generate tpch --scale 0.01 --out t --tables orders,lineitem");
    run.ok();
    assert!(run.stderr.contains("t/orders.parquet: 15,000 rows"), "{}", run.stderr);
    assert!(run.stderr.contains("t/lineitem.parquet: 60,175 rows"), "{}", run.stderr);
    let join = "join t/orders.parquet t/lineitem.parquet --on o_orderkey=l_orderkey";
    for algorithm in ["auto", "no-partition", "radix", "sort-merge"] {
        for (join_type, rows) in [
            ("inner", 60_175),
            ("left", 60_175),
            ("right", 60_175),
            ("full", 60_175),
            ("left-semi", 15_000),
            ("right-semi", 60_175),
            ("left-anti", 0),
            ("right-anti", 0),
            ("left-mark", 15_000),
            ("right-mark", 60_175),
        ] {
            let run = format!("{join} --algorithm {algorithm} --type {join_type} --count");
            assert_eq!(sandbox.strait(&run).ok(), format!("{rows}\n"), "{run}");
        }
        let run = format!("{join} --algorithm {algorithm} -o {algorithm}.parquet");
        let run = sandbox.strait(&run);
        run.ok();
        assert!(run.stderr.contains("wrote 60,175 rows"), "{}", run.stderr);
    }
    let again = sandbox.strait("generate tpch --scale 0.01 --out t --tables orders");
    again.fails(&["t/orders.parquet exists already", "--overwrite"]);
}

#[test]
fn tpch_writes_all_tables_in_every_format() {
    let sandbox = Sandbox::new();
    for format in ["parquet", "csv", "arrow"] {
        sandbox.strait(&format!("generate tpch --scale 0.001 --out t --format {format}")).ok();
        for name in
            ["region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"]
        {
            assert!(sandbox.path(&format!("t/{name}.{format}")).exists(), "{name}.{format}");
        }
        let run = format!(
            "join t/nation.{format} t/region.{format} --on n_regionkey=r_regionkey --count"
        );
        assert_eq!(sandbox.strait(&run).ok(), "25\n");
    }
}

#[test]
fn tpch_in_many_files_and_with_text_keys_has_the_same_rows() {
    let sandbox = Sandbox::new();
    let tables = "--scale 0.01 --tables orders,lineitem,nation";
    sandbox.strait(&format!("generate tpch {tables} --out one")).ok();
    sandbox.strait(&format!("generate tpch {tables} --out many --files 7")).ok();
    sandbox.strait(&format!("generate tpch {tables} --out text --text-keys")).ok();
    for (table, files) in [("orders", 7), ("lineitem", 7), ("nation", 1)] {
        let folder = std::fs::read_dir(sandbox.path(&format!("many/{table}"))).unwrap();
        assert_eq!(folder.count(), files, "{table}");
    }
    let count = |arguments: &str| sandbox.strait(&format!("join {arguments} --count")).ok();
    let both = "l_orderkey,l_linenumber,l_comment";
    assert_eq!(count(&format!("many/lineitem one/lineitem.parquet --on {both}")), "60175\n");
    assert_eq!(count("many/nation one/nation.parquet --on n_nationkey"), "25\n");
    let keys = "--on o_orderkey=l_orderkey";
    assert_eq!(count(&format!("text/orders.parquet text/lineitem.parquet {keys}")), "60175\n");
    let other = "one/orders.parquet text/orders.parquet --on o_custkey,o_clerk,o_comment";
    let select = "--select o_orderkey,o_orderkey_right --limit 1 -o pair.csv";
    sandbox.strait(&format!("join {other} {select}")).ok();
    let text = std::fs::read_to_string(sandbox.path("pair.csv")).unwrap();
    let (number, key) = text.lines().nth(1).unwrap().split_once(',').unwrap();
    assert_eq!(key, format!("Order#{number:0>9}"));
}

#[test]
fn tpch_does_not_depend_on_threads() {
    let sandbox = Sandbox::new();
    for threads in [1, 3] {
        let run = format!(
            "generate tpch --scale 0.3 --tables supplier,customer --out t{threads} --threads {threads}"
        );
        sandbox.strait(&run).ok();
    }
    for name in ["supplier", "customer"] {
        let bytes = |folder: &str| {
            std::fs::read(sandbox.path(&format!("{folder}/{name}.parquet"))).unwrap()
        };
        assert!(bytes("t1") == bytes("t3"), "{name}");
    }
}

#[test]
fn workloads_have_the_matches_asked_for() {
    let sandbox = Sandbox::new();
    let count = |arguments: &str| -> u64 {
        sandbox.strait(&format!("generate workload --out w --overwrite {arguments}")).ok();
        let count = sandbox.strait("join w/build.parquet w/probe.parquet --on key --count").ok();
        count.trim().parse().unwrap()
    };
    for key_type in ["int64", "int32", "string"] {
        for keys in ["dense", "sparse"] {
            let shape = format!("--build 1000 --probe 5000 --key-type {key_type} --keys {keys}");
            assert_eq!(count(&shape), 5_000, "{shape}");
            assert_eq!(count(&format!("{shape} --duplicates 4")), 20_000, "{shape}");
            assert_eq!(count(&format!("{shape} --skew zipf:1.1")), 5_000, "{shape}");
            assert_eq!(count(&format!("{shape} --selectivity 0")), 0, "{shape}");
            let half = count(&format!("{shape} --selectivity 0.5"));
            assert!((2_300..2_700).contains(&half), "{shape}: {half}");
        }
    }
    assert_eq!(count("--build 0 --probe 10 --selectivity 0"), 0);
    assert_eq!(count("--build 10 --probe 0"), 0);
    assert_eq!(count("--build 300000 --probe 300000 --payload-columns 0"), 300_000);
}

#[test]
fn workloads_follow_from_their_seed() {
    let sandbox = Sandbox::new();
    let shape =
        "generate workload --build 300000 --probe 300000 --skew zipf:0.9 --payload-columns 2";
    for (folder, more) in [("a", "--threads 1"), ("b", "--threads 4"), ("c", "--seed 7")] {
        sandbox.strait(&format!("{shape} --out {folder} {more}")).ok();
    }
    for name in ["build", "probe"] {
        let bytes = |folder: &str| {
            std::fs::read(sandbox.path(&format!("{folder}/{name}.parquet"))).unwrap()
        };
        assert!(bytes("a") == bytes("b"), "{name}: threads changed the rows");
        assert!(bytes("a") != bytes("c"), "{name}: the seed changed nothing");
    }
}

#[test]
fn the_demo_shows_a_join_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command();
    command.args(["demo", "--scale", "0.01"]).env("TMPDIR", sandbox.path(""));
    let shown = crate::sandbox::outcome(&mut command).ok();
    for part in [
        "15,000",
        "60,175",
        "o_orderkey",
        "first 10 of 60,175 rows",
        "M tuples/s",
        "strait generate tpch",
        "strait join",
    ] {
        assert!(shown.contains(part), "no \"{part}\" in {shown}");
    }
    assert_eq!(sandbox.names(), Vec::<String>::new());
}
