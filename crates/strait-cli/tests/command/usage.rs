//! Wrong usage ends with status 2, and help has examples.

use crate::sandbox::Sandbox;

#[test]
fn wrong_usage_is_refused() {
    let sandbox = Sandbox::with_people();
    let cases: [(&str, &[&str]); 27] = [
        ("", &["Usage"]),
        ("jion a b", &["join"]),
        ("join people.csv", &["RIGHT"]),
        ("join people.csv cities.csv", &["--on"]),
        ("join people.csv cities.csv --on a=b=c", &["more than one `=`"]),
        ("join people.csv cities.csv --on a,", &["a column name is missing"]),
        ("join people.csv cities.csv --on a --type outer", &["full", "left-anti"]),
        ("join people.csv cities.csv --on a --algorithm quantum", &["sort-merge"]),
        ("join people.csv cities.csv --on a --algorithm quantum", &["cpu-partitioned", "triton"]),
        ("join people.csv cities.csv --on a --transfer post", &["zero-copy"]),
        ("join people.csv cities.csv --on a --table disk", &["hybrid"]),
        ("join people.csv cities.csv --on a --histogram yes", &["none"]),
        ("join people.csv cities.csv --on a --cache lots", &["8GiB"]),
        ("join people.csv cities.csv --on a --threads 0", &["at least one thread"]),
        ("join people.csv cities.csv --on a --memory lots", &["8GiB"]),
        ("join people.csv cities.csv --on a -o out.xlsx", &["ending", ".parquet"]),
        ("join people.csv cities.csv --on a -o out", &["ending", ".parquet"]),
        ("join people.csv cities.csv --on a --overwrite", &["--output"]),
        ("join people.csv cities.csv --on a --count -o out.csv", &["--count", "--output"]),
        ("join people.csv cities.csv --on a --count --limit 3", &["--count", "--limit"]),
        ("join people.csv cities.csv --on a --csv-delimiter ab", &["one ASCII character"]),
        ("join people.csv cities.csv --on a -o x.csv --compression zstd", &[".csv.zst"]),
        ("join people.csv cities.csv --on a -o x.arrow --compression snappy", &["snappy"]),
        ("join - - --on a", &["only one stdin"]),
        ("generate tpch --scale 0 --out t", &["0.001 to 100000"]),
        ("generate workload --build 1 --probe 1 --skew zipf --out t", &["zipf:THETA"]),
        ("generate workload --build 1 --probe 1 --selectivity 2 --out t", &["from 0 to 1"]),
    ];
    for (arguments, parts) in cases {
        sandbox.strait(arguments).refused(parts);
    }
    assert_eq!(sandbox.names(), ["cities.csv", "people.csv"]);
}

#[test]
fn every_help_has_examples() {
    let sandbox = Sandbox::new();
    let commands = [
        "",
        "join",
        "sql",
        "demo",
        "devices",
        "generate",
        "generate tpch",
        "generate workload",
        "completions",
        "man",
    ];
    for command in commands {
        for flag in ["--help", "-h"] {
            let help = sandbox.strait(&format!("{command} {flag}")).ok();
            assert!(help.contains("Examples:\n"), "{command} {flag}: {help}");
        }
    }
}

#[test]
fn version() {
    let version = Sandbox::new().strait("--version").ok();
    assert_eq!(version, format!("strait {}\n", env!("CARGO_PKG_VERSION")));
}

/// A build without object stores says how to get one with them.
#[test]
#[cfg(not(feature = "object-stores"))]
fn urls_need_a_feature() {
    let sandbox = Sandbox::with_people();
    for arguments in [
        "join people.csv s3://bucket/cities.csv --on city=id",
        "join people.csv https://host/cities.csv?sig=secret --on city=id",
        "join people.csv cities.csv --on city=id -o gs://bucket/out.csv",
    ] {
        let run = sandbox.strait(arguments);
        run.refused(&["cargo build --release --features object-stores", "cargo install"]);
        assert!(!run.stderr.contains("secret"), "{}", run.stderr);
    }
}
