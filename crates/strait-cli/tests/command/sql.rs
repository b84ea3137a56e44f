//! `strait sql`: statements on files.

#[cfg(not(feature = "sql"))]
mod absent {
    use crate::sandbox::Sandbox;

    /// A build without SQL says how to get it.
    #[test]
    fn sql_needs_a_feature() {
        let sandbox = Sandbox::new();
        for arguments in ["sql", "sql SELECT", "sql -f x.sql --memory 1GiB -o out.csv"] {
            let run = sandbox.strait(arguments);
            run.refused(&[
                "this build of strait has no SQL",
                "cargo install --path crates/strait-cli --features sql",
                "cargo run --release --features sql -- sql",
            ]);
        }
    }
}

#[cfg(feature = "sql")]
mod present {
    use std::process::Stdio;
    use std::sync::Arc;
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use flate2::write::GzEncoder;
    use std::io::Write;

    use crate::sandbox::{
        Outcome, Sandbox, batch, outcome, read_ipc_file, read_ipc_stream, read_parquet, sorted,
        stream_of,
    };

    /// Runs `strait sql` with statements and flags.
    fn sql(sandbox: &Sandbox, statements: &str, flags: &str) -> Outcome {
        let mut command = sandbox.command();
        outcome(command.arg("sql").arg(statements).args(flags.split_whitespace()))
    }

    /// Runs statements, and returns the rows of the last one as CSV.
    #[track_caller]
    fn rows(sandbox: &Sandbox, statements: &str) -> String {
        sql(sandbox, statements, "--format csv").ok()
    }

    fn cities() -> RecordBatch {
        batch(("id", &[1, 2, 3]), ("title", &["Oslo", "Rome", "Kiel"]))
    }

    fn gzipped(text: &str) -> Vec<u8> {
        let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        gzip.finish().unwrap()
    }

    #[test]
    fn every_format_is_joined() {
        let sandbox = Sandbox::with_people();
        let text = sandbox.read("cities.csv");
        sandbox.parquet("cities.parquet", &cities());
        sandbox.ipc_file("cities.arrow", &cities());
        sandbox.ipc_stream("cities.arrows", &cities());
        sandbox.write("cities.tsv", text.replace(',', "\t"));
        sandbox.write("cities.csv.gz", gzipped(&text));
        sandbox.write("cities.csv.zst", zstd::encode_all(text.as_bytes(), 1).unwrap());
        let lines = "{\"id\":1,\"title\":\"Oslo\"}\n{\"id\":2,\"title\":\"Rome\"}\n{\"id\":3,\"title\":\"Kiel\"}\n";
        sandbox.write("cities.jsonl", lines);
        sandbox.write("cities.jsonl.gz", gzipped(lines));
        for ending in
            ["csv", "csv.gz", "csv.zst", "tsv", "jsonl", "jsonl.gz", "parquet", "arrow", "arrows"]
        {
            let join = format!(
                "SELECT name, title FROM 'people.csv' JOIN 'cities.{ending}' ON city = id ORDER BY name"
            );
            assert_eq!(rows(&sandbox, &join), "name,title\nAda,Oslo\nBob,Rome\n", "{ending}");
            let count = format!("SELECT count(*) AS n, max(title) AS t FROM 'cities.{ending}'");
            assert_eq!(rows(&sandbox, &count), "n,t\n3,Rome\n", "{ending}");
            let count = format!("SELECT count(*) AS n FROM 'cities.{ending}'");
            assert_eq!(rows(&sandbox, &count), "n\n3\n", "{ending}");
        }
    }

    /// Strait does the joins, not DataFusion.
    #[test]
    fn strait_does_the_joins() {
        let sandbox = Sandbox::with_people();
        let join = "SELECT * FROM 'people.csv' JOIN 'cities.csv' ON city = id";
        let plan = sql(&sandbox, &format!("EXPLAIN {join}"), "--device cpu").ok();
        assert!(plan.contains("StraitJoinExec: mode="), "{plan}");
        assert!(plan.lines().count() > 5, "{plan}");
        let report = sql(&sandbox, &format!("EXPLAIN ANALYZE {join}"), "").ok();
        assert!(report.contains("output_rows=2"), "{report}");
        let plan = rows(&sandbox, &format!("SET strait.enabled = false; EXPLAIN {join}"));
        assert!(plan.contains("HashJoinExec") && !plan.contains("StraitJoin"), "{plan}");
    }

    #[test]
    fn folders_and_globs_are_tables() {
        let sandbox = Sandbox::new();
        for (folder, name) in [("year=2023", "a"), ("year=2024", "b"), ("year=2024/more", "c")] {
            sandbox.write(&format!("csv/{folder}/{name}.csv"), format!("name\n{name}\n"));
            let one = batch(("n", &[1]), ("name", &[name]));
            sandbox.parquet(&format!("parquet/{folder}/{name}.parquet"), &one);
        }
        let null = batch(("n", &[1]), ("name", &["z"]));
        sandbox.parquet("parquet/year=__HIVE_DEFAULT_PARTITION__/z.parquet", &null);
        sandbox.parquet("parquet/_hidden/h.parquet", &cities());
        for (table, expected) in [
            ("csv/", "2023,a 2024,b 2024,c"),
            ("./csv", "2023,a 2024,b 2024,c"),
            ("csv/year=2024", ""),
            ("csv/*/*.csv", "2023,a 2024,b"),
            ("parquet/", "2023,a 2024,b 2024,c ,z"),
            ("parquet/year=2*/*.parquet", "2023,a 2024,b"),
            ("parquet/*/*/c.parquet", "2024,c"),
        ] {
            if expected.is_empty() {
                // The folder of the table is no column of it.
                let names = rows(&sandbox, &format!("SELECT * FROM '{table}' ORDER BY name"));
                assert_eq!(names, "name\nb\nc\n", "{table}");
                continue;
            }
            let text = rows(&sandbox, &format!("SELECT year, name FROM '{table}' ORDER BY name"));
            let lines: Vec<&str> = text.lines().skip(1).collect();
            assert_eq!(lines.join(" "), expected, "{table}");
        }
        for (filter, expected) in
            [("year IS NULL", "z"), ("year = 2023", "a"), ("year > 2023 AND name > 'b'", "c")]
        {
            let text = rows(&sandbox, &format!("SELECT name FROM 'parquet/' WHERE {filter}"));
            assert_eq!(text, format!("name\n{expected}\n"), "{filter}");
        }
    }

    #[test]
    fn tables_get_names() {
        let sandbox = Sandbox::with_people();
        sandbox.parquet("c/1.parquet", &cities());
        let flags = "--table p=people.csv --table Towns=c/ --format csv";
        let join = "SELECT name, title FROM p JOIN \"Towns\" ON city = id ORDER BY 1";
        assert_eq!(sql(&sandbox, join, flags).ok(), "name,title\nAda,Oslo\nBob,Rome\n");
        let shown = sql(&sandbox, "SHOW TABLES", flags).ok();
        assert!(shown.contains("public,p,") && shown.contains("public,Towns,"), "{shown}");
        sql(&sandbox, join, "--table p=nothing.csv").fails(&["nothing.csv does not exist"]);
        sql(&sandbox, join, "--table p").refused(&["NAME=PATH"]);
    }

    #[test]
    fn rows_are_written_in_every_format() {
        let sandbox = Sandbox::with_people();
        let query = "SELECT name, city FROM 'people.csv' WHERE city < 5 ORDER BY name DESC";
        let expected = "name,city\nBob,2\nAda,1\n";
        for name in ["out.csv", "out.parquet", "out.arrow", "out.arrows", "out.jsonl"] {
            let run = sql(&sandbox, query, &format!("-o {name}"));
            assert_eq!(run.ok(), "");
            assert_eq!(run.stderr, format!("wrote 2 rows to {name}\n"));
        }
        assert_eq!(sandbox.read("out.csv"), expected);
        assert_eq!(read_parquet(&sandbox.path("out.parquet")), expected);
        assert_eq!(read_ipc_file(&sandbox.path("out.arrow")), expected);
        assert_eq!(read_ipc_stream(&std::fs::read(sandbox.path("out.arrows")).unwrap()), expected);
        let lines = "{\"name\":\"Bob\",\"city\":2}\n{\"name\":\"Ada\",\"city\":1}\n";
        assert_eq!(sandbox.read("out.jsonl"), lines);
        assert_eq!(sql(&sandbox, query, "--format jsonl").ok(), lines);
        assert_eq!(sql(&sandbox, query, "--format tsv").ok(), expected.replace(',', "\t"));
        for flags in ["-o -", "--format arrow"] {
            let run = sql(&sandbox, query, flags);
            run.ok();
            assert_eq!(read_ipc_stream(&run.stdout), expected, "{flags}");
        }
        let shown = sql(&sandbox, query, "--rows 1").ok();
        assert!(shown.ends_with("Bob  │    2\n\nfirst 1 of 2 rows, 2 columns\n"), "{shown}");
    }

    /// Many rows, from several partitions at once and in order.
    #[test]
    fn large_results_are_whole() {
        let sandbox = Sandbox::new();
        let lines: String = (0..200_000).map(|i| format!("{},{i}\n", i % 1000)).collect();
        sandbox.write("t.csv", format!("k,v\n{lines}"));
        let query = "SELECT k, v FROM 't.csv' WHERE v % 3 = 0";
        for (order, out) in [("", "a.parquet"), ("ORDER BY v DESC", "b.parquet")] {
            let flags = format!("-o {out} --threads 4 --row-group-rows 10000");
            sql(&sandbox, &format!("{query} {order}"), &flags).ok();
            let check = format!("SELECT count(*), count(DISTINCT v), sum(k) FROM '{out}'");
            let expected = (0..200_000).filter(|i| i % 3 == 0).map(|i| i % 1000).sum::<i64>();
            let text = rows(&sandbox, &check);
            assert_eq!(text.lines().nth(1).unwrap(), format!("66667,66667,{expected}"));
        }
        let text = read_parquet(&sandbox.path("b.parquet"));
        let values: Vec<i64> = text
            .lines()
            .skip(1)
            .map(|row| row.split_once(',').unwrap().1.parse().unwrap())
            .collect();
        assert!(values.is_sorted_by(|a, b| a > b));
    }

    #[test]
    fn an_output_is_not_one_of_the_tables() {
        let sandbox = Sandbox::with_people();
        let before = sandbox.names();
        let query = "SELECT * FROM 'people.csv'";
        let run = sql(&sandbox, query, "-o people.csv --overwrite");
        run.fails(&["people.csv is part of the table people.csv"]);
        sql(&sandbox, query, "-o cities.csv").fails(&["exists already", "--overwrite"]);
        sql(&sandbox, query, "-o no/out.csv").fails(&["there is no folder no"]);
        sql(&sandbox, "SELECT a.id, b.id FROM 'cities.csv' a, 'cities.csv' b", "-o out.csv")
            .fails(&["two columns \"id\"", "AS other"]);
        sql(&sandbox, "CREATE TABLE t (a INT)", "-o out.csv").fails(&["returns no rows"]);
        assert_eq!(sandbox.names(), before);
        assert_eq!(sandbox.read("people.csv"), crate::sandbox::PEOPLE);
    }

    #[test]
    fn copy_writes_files_and_replaces_none() {
        let sandbox = Sandbox::with_people();
        let copies = "CREATE VIEW p AS SELECT name, city FROM 'people.csv' WHERE city < 5;\n\
            COPY (SELECT * FROM p ORDER BY name) TO 'a.csv';\n\
            COPY p TO 'b.parquet' OPTIONS (compression snappy);\n\
            COPY p TO 'c' STORED AS JSON";
        for flags in ["", "--memory 64MiB"] {
            let run = sql(&sandbox, copies, flags);
            assert_eq!(run.ok(), "");
            let expected = "wrote 2 rows to a.csv\nwrote 2 rows to b.parquet\nwrote 2 rows to c\n";
            assert_eq!(run.stderr, expected);
            assert_eq!(sandbox.read("a.csv"), "name,city\nAda,1\nBob,2\n");
            let lines = read_parquet(&sandbox.path("b.parquet"));
            assert_eq!(sorted(&lines), sorted("name,city\nAda,1\nBob,2\n"));
            assert_eq!(sandbox.read("c").lines().count(), 2);
            for name in ["a.csv", "b.parquet", "c"] {
                std::fs::remove_file(sandbox.path(name)).unwrap();
            }
        }
        let before = sandbox.names();
        sandbox.write("old.csv", "old");
        sql(&sandbox, "COPY 'people.csv' TO 'old.csv'", "")
            .fails(&["old.csv exists already; add OPTIONS (overwrite true) to replace it"]);
        assert_eq!(sandbox.read("old.csv"), "old");
        sql(&sandbox, "COPY 'people.csv' TO 'old.csv' OPTIONS (overwrite true)", "").ok();
        assert_eq!(sandbox.read("old.csv"), crate::sandbox::PEOPLE);
        std::fs::remove_file(sandbox.path("old.csv")).unwrap();
        sql(&sandbox, "COPY 'people.csv' TO 'people.csv' OPTIONS (overwrite true)", "")
            .fails(&["people.csv is part of the table people.csv"]);
        let twice = "COPY (SELECT a.city, b.city FROM 'people.csv' a, 'people.csv' b) TO 'x.csv'";
        sql(&sandbox, twice, "").fails(&["two columns \"city\"", "AS other"]);
        sql(&sandbox, "EXPLAIN ANALYZE COPY 'people.csv' TO 'x.csv'", "")
            .fails(&["COPY cannot be a part of another statement"]);
        // What can be seen in the statements is said before the first file is written.
        let copy = "COPY 'people.csv' TO 'x.csv'";
        sql(&sandbox, &format!("{copy}; {copy}"), "-o y.csv").fails(&["returns no rows"]);
        sql(&sandbox, &format!("{copy}; COPY 'people.csv' TO 'y.xlsx'"), "")
            .fails(&["the ending does not say"]);
        sql(&sandbox, "COPY 'people.csv' TO 'x.parquet.gz' STORED AS PARQUET", "")
            .fails(&["the ending names a compression"]);
        let into = "COPY (SELECT 1 AS a INTO t) TO 'x.csv'; SELECT * FROM t";
        sql(&sandbox, into, "").fails(&["the statement returns no rows"]);
        let external = "CREATE EXTERNAL TABLE e STORED AS CSV LOCATION 'cities.csv' OPTIONS ('format.has_header' 'true');";
        sql(&sandbox, &format!("{external} COPY e TO 'cities.csv' OPTIONS (overwrite true)"), "")
            .fails(&["cities.csv is part of the table"]);
        // A failure leaves no file.
        sql(&sandbox, "COPY (SELECT CAST(name AS INT) AS n FROM 'people.csv') TO 'x.csv'", "")
            .fails(&["Cannot cast string 'Ada'"]);
        assert_eq!(sandbox.names(), before);
        assert_eq!(sandbox.read("people.csv"), crate::sandbox::PEOPLE);
    }

    #[test]
    fn several_statements_run_in_turn() {
        let sandbox = Sandbox::with_people();
        let script = "\n-- a comment; with a semicolon\n\
            CREATE VIEW p AS SELECT * FROM 'people.csv';\n\
            CREATE TABLE big AS SELECT * FROM p WHERE city > 1;\n\
            SELECT count(*) AS all_people FROM p;\n\
            SELECT name AS big_name FROM big ORDER BY 1;";
        let shown = sql(&sandbox, script, "").ok();
        let names = shown.find("big_name").unwrap();
        assert!(shown.find("all_people").unwrap() < names, "{shown}");
        assert!(shown[names..].contains("Bob") && shown[names..].contains("Dan"), "{shown}");
        // Only the last rows are written.
        assert_eq!(rows(&sandbox, script), "big_name\nBob\nDan\n");
        sandbox.write("script.sql", script);
        let run = |flags: &str| sandbox.strait(&format!("sql {flags} --format csv")).ok();
        assert_eq!(run("-f script.sql"), "big_name\nBob\nDan\n");
        for arguments in ["sql -f - --format csv", "sql --format csv"] {
            let run = sandbox.strait_with_stdin(arguments, script.as_bytes());
            assert_eq!(run.ok(), "big_name\nBob\nDan\n");
        }
        sandbox.strait("sql -f no.sql").fails(&["cannot read statements from no.sql"]);
        sandbox.strait("sql").fails(&["there is no statement"]);
        sql(&sandbox, ";; -- nothing", "").fails(&["there is no statement"]);
        // Nothing runs if a later statement is not SQL.
        let run = sql(&sandbox, "SELECT 1;\nSELECT 2 FORM x y", "");
        run.fails(&["line 2, column 15: this is not SQL"]);
        assert_eq!(run.text(), "");
    }

    #[test]
    fn stdin_is_a_table_once() {
        let sandbox = Sandbox::with_people();
        let input = stream_of(&cities());
        let run = |query: &str| {
            let mut command = sandbox.command();
            command.args(["sql", "--format", "csv", query]).stdin(Stdio::piped());
            let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            let mut child = piped.unwrap();
            child.stdin.take().unwrap().write_all(&input).unwrap();
            let output = child.wait_with_output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            Outcome { status: output.status.code(), stdout: output.stdout, stderr }
        };
        let join = "SELECT name, title FROM 'people.csv' JOIN '-' ON city = id ORDER BY 1";
        assert_eq!(run(join).ok(), "name,title\nAda,Oslo\nBob,Rome\n");
        let kept = "CREATE TABLE c AS SELECT * FROM '-'; SELECT count(*) AS n FROM c a, c b";
        assert_eq!(run(kept).ok(), "n\n9\n");
        run("SELECT id FROM '-' a JOIN '-' b USING (id)").fails(&["stdin can be read only once"]);
    }

    #[test]
    fn errors_say_where_and_what_to_try() {
        let sandbox = Sandbox::with_people();
        sandbox.write("Mixed.csv", "Name,x\nAda,1\n");
        sandbox.write("broken.parquet", "PAR1 this is not");
        let cases: [(&str, &[&str]); 13] = [
            ("SELEC 1", &["line 1, column 1: this is not SQL", "found: SELEC"]),
            ("SELECT 'a", &["this is not SQL", "line 1, column 8"]),
            (
                "SELECT * FROM peoples",
                &[
                    "line 1, column 15: there is no table \"peoples\"; did you mean people?",
                    "FROM 'orders.parquet'",
                ],
            ),
            ("SELECT * FROM people.csv", &["no table \"people.csv\"", "FROM 'people.csv'"]),
            ("SELECT * FROM 'peple.csv'", &["peple.csv does not exist; did you mean people.csv?"]),
            ("SELECT * FROM 'no/*.csv'", &["no table matches \"no/*.csv\""]),
            (
                "SELECT nme FROM 'people.csv'",
                &[
                    "line 1, column 8: there is no column \"nme\"; did you mean name?",
                    "the columns are name, city",
                ],
            ),
            ("SELECT Name FROM 'Mixed.csv'", &["did you mean \"Name\"?", "double quotes"]),
            (
                "SELECT\n name FROM 'people.csv' a JOIN 'people.csv' b USING (city)",
                &["column \"name\" is in several tables"],
            ),
            ("SELECT * FROM 'broken.parquet'", &["broken.parquet"]),
            ("SELECT nosuch(1)", &["line 1, column 8", "nosuch"]),
            ("SELECT CAST(name AS INT) FROM 'people.csv'", &["Cannot cast string 'Ada'"]),
            ("SELECT * FROM 'ftp://host/a.csv'", &["strait does not know ftp://"]),
        ];
        for (statement, parts) in cases {
            let mut command = sandbox.command();
            let run = outcome(command.args(["sql", statement, "--table", "people=people.csv"]));
            run.fails(parts);
        }
        sql(&sandbox, "SELECT 1", "--temp-dir .").refused(&["no effect without --memory"]);
        sql(&sandbox, "SELECT 1", "-f x.sql").refused(&["--file"]);
        sql(&sandbox, "SELECT 1", "-o x.csv --format csv").refused(&["--output", "--format"]);
        sql(&sandbox, "SELECT 1", "-o x.csv --compression zstd").refused(&[".csv.zst"]);
        sql(&sandbox, "SELECT 1", "--memory 64MiB --temp-dir no").fails(&["no does not exist"]);
    }

    /// Two tables that need much more than 16 MiB in memory.
    fn large() -> Sandbox {
        const ROWS: i64 = 150_000;
        let sandbox = Sandbox::new();
        for (name, step) in [("a.parquet", 7919), ("b.parquet", 104_729)] {
            let keys: Vec<i64> = (0..ROWS).map(|row| row * step % ROWS).collect();
            let texts: StringArray = keys.iter().map(|key| Some(format!("{key:0100}"))).collect();
            let columns =
                [("k", Arc::new(Int64Array::from(keys)) as ArrayRef), ("t", Arc::new(texts) as _)];
            sandbox.parquet(name, &RecordBatch::try_from_iter(columns).unwrap());
        }
        std::fs::create_dir(sandbox.path("temp")).unwrap();
        sandbox
    }

    #[test]
    fn statements_beyond_the_limit_spill() {
        let sandbox = large();
        let left = |sandbox: &Sandbox| std::fs::read_dir(sandbox.path("temp")).unwrap().count();
        let join = "SELECT a.t AS t, b.t AS u FROM 'a.parquet' a JOIN 'b.parquet' b USING (k)";
        for query in [join.to_string(), format!("{join} ORDER BY a.t || b.t")] {
            sql(&sandbox, &query, "-o all.csv --overwrite --threads 2").ok();
            let limits = "--memory 24MiB --temp-dir temp --disk 1GiB --threads 2 --device cpu";
            sql(&sandbox, &query, &format!("-o limited.csv --overwrite {limits}")).ok();
            let (all, limited) = (sandbox.read("all.csv"), sandbox.read("limited.csv"));
            assert_eq!(all.lines().count(), 150_001);
            assert!(sorted(&all) == sorted(&limited));
            assert_eq!(left(&sandbox), 0);
            // The limit is really too small for the statement.
            let run = sql(
                &sandbox,
                &query,
                "-o no.csv --memory 24MiB --no-spill --threads 2 --device cpu",
            );
            run.fails(&["the memory limit of 24.0 MiB is too small", "try --memory 48MiB"]);
        }
        let flags = "--memory 24MiB --temp-dir temp --disk 1MiB --threads 2 -o no.csv --device cpu";
        sql(&sandbox, join, flags).fails(&["the limit of 1.0 MiB on disk is too small", "--disk"]);
        assert!(!sandbox.path("no.csv").exists());
        assert_eq!(left(&sandbox), 0);
    }

    /// The rows of tables in memory count, until the tables are dropped.
    #[test]
    fn tables_in_memory_count() {
        let sandbox = large();
        let limits = "--memory 64MiB --threads 2 --device cpu";
        let create = |name: &str| format!("CREATE TABLE {name} AS SELECT * FROM 'a.parquet';");
        let count = "SELECT count(*) AS n, count(DISTINCT k) AS k FROM t";
        let once = format!("{} {count}", create("t"));
        assert_eq!(
            sql(&sandbox, &once, &format!("{limits} --format csv")).ok(),
            "n,k\n150000,150000\n"
        );
        // Two tables do not fit. The first one makes room if it is dropped or replaced.
        let both: String = ["t", "u", "v", "w"].map(create).concat();
        sql(&sandbox, &format!("{both} {count}"), limits)
            .fails(&["the memory limit of 64.0 MiB is too small", "--memory"]);
        let dropped: String = (0..4).map(|_| create("t") + "DROP TABLE t;").collect();
        let replaced: String =
            (0..4).map(|_| create("t").replace("TABLE", "OR REPLACE TABLE")).collect();
        for before in [dropped + &create("t"), replaced] {
            let run =
                sql(&sandbox, &format!("{before} {count}"), &format!("{limits} --format csv"));
            assert_eq!(run.ok(), "n,k\n150000,150000\n");
        }
        let again =
            format!("{} CREATE TABLE IF NOT EXISTS t AS SELECT 1 AS k; {count}", create("t"));
        assert_eq!(
            sql(&sandbox, &again, &format!("{limits} --format csv")).ok(),
            "n,k\n150000,150000\n"
        );
        sql(&sandbox, &format!("{0} {0}", create("t")), limits).fails(&["t", "already exists"]);
        // The spelling of a name does not matter, and a view keeps the rows of a table that was dropped.
        let quoted: String = ["\"T\"", "\"U\"", "\"a b\"", "public.w"].map(create).concat();
        let viewed: String = ["t", "u", "v", "w"]
            .map(|name| {
                create(name)
                    + &format!("CREATE VIEW of_{name} AS SELECT * FROM {name}; DROP TABLE {name};")
            })
            .concat();
        for before in [quoted, viewed] {
            let run = sql(&sandbox, &format!("{before} SELECT 1"), limits);
            run.fails(&["the memory limit of 64.0 MiB is too small", "--memory"]);
        }
        // Slices of one large batch count once.
        let grouped = "CREATE TABLE g AS SELECT value AS k, count(*) AS n FROM generate_series(1, 300000) GROUP BY value; \
            SELECT count(*) AS n, sum(n) AS s FROM g";
        assert_eq!(
            sql(&sandbox, grouped, &format!("{limits} --format csv")).ok(),
            "n,s\n300000,300000\n"
        );
    }

    /// The process is interrupted while it writes.
    #[test]
    fn an_interrupt_leaves_nothing() {
        let sandbox = Sandbox::new();
        let lines: String = (0..20_000).map(|i| format!("{i}\n")).collect();
        sandbox.write("t.csv", format!("a\n{lines}"));
        sandbox.write("out.csv", "old");
        let before = sandbox.names();
        let mut command = sandbox.command();
        // The product has 400 million rows.
        let product = "SELECT x.a, y.a AS b FROM 't.csv' x, 't.csv' y WHERE x.a <> y.a";
        command.args(["sql", product, "-o", "out.csv", "--overwrite"]).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        let writes = |id: u32| {
            let files = std::fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
            let sizes = files.filter_map(|file| {
                let name = std::fs::read_link(file.path()).ok()?;
                let shown = name.to_string_lossy().into_owned();
                let temporary = shown.ends_with("(deleted)") || shown.ends_with(".tmp");
                (temporary && name.starts_with(sandbox.path("").canonicalize().ok()?))
                    .then(|| std::fs::metadata(file.path()).map_or(0, |found| found.len()))
            });
            sizes.sum::<u64>() > 0
        };
        while !writes(child.id()) {
            assert!(child.try_wait().unwrap().is_none(), "the run ended too early");
            assert!(begun.elapsed() < Duration::from_secs(120), "nothing is written");
            sleep(Duration::from_millis(10));
        }
        let id = child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(sandbox.names(), before);
        assert_eq!(sandbox.read("out.csv"), "old");
    }
}
