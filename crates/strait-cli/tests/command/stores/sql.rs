//! `strait sql` reads objects and writes them.

use super::SECRET;
use super::fake::Fake;
use crate::sandbox::{CITIES, Outcome, Sandbox, batch, outcome};

fn sql(sandbox: &Sandbox, fake: &Fake, statement: &str, flags: &str) -> Outcome {
    let mut command = sandbox.command();
    fake.configure(&mut command);
    let run = outcome(command.arg("sql").arg(statement).args(flags.split_whitespace()));
    assert!(!run.stderr.contains(SECRET) && !run.stderr.contains("sig=x"), "{}", run.stderr);
    run
}

/// A store with three cities in two formats, one of them in folders.
fn store(sandbox: &Sandbox) -> Fake {
    let fake = Fake::new();
    fake.put("b/in/cities.csv", CITIES);
    let cities = [("2023", 1, "Oslo"), ("2023", 2, "Rome"), ("2024", 3, "Kiel")];
    for (year, id, title) in cities {
        sandbox.parquet("one.parquet", &batch(("id", &[id]), ("title", &[title])));
        let bytes = std::fs::read(sandbox.path("one.parquet")).unwrap();
        fake.put(&format!("b/years/year={year}/{id}.parquet"), bytes);
    }
    fake
}

#[test]
fn objects_are_tables() {
    let sandbox = Sandbox::with_people();
    let fake = store(&sandbox);
    let web = [fake.url("b/in/cities.csv?sig=x"), fake.url("b/years/year=2023/1.parquet?sig=x")];
    for (table, expected) in [
        ("s3://b/in/cities.csv", "Ada,Oslo Bob,Rome"),
        ("gs://b/in/*.csv", "Ada,Oslo Bob,Rome"),
        ("s3://b/years/", "Ada,Oslo Bob,Rome"),
        ("gs://b/years/year=*/1.parquet", "Ada,Oslo"),
        ("s3://b/years/year=2023/2.parquet", "Bob,Rome"),
        (&web[0], "Ada,Oslo Bob,Rome"),
        (&web[1], "Ada,Oslo"),
    ] {
        let join =
            format!("SELECT name, title FROM 'people.csv' JOIN '{table}' ON city = id ORDER BY 1");
        let text = sql(&sandbox, &fake, &join, "--format csv").ok();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines.join(" "), expected, "{table}");
    }
    let years = "SELECT year, count(*) AS n FROM t WHERE year >= 2023 GROUP BY year ORDER BY year";
    let text = sql(&sandbox, &fake, years, "--table t=s3://b/years/ --format csv").ok();
    assert_eq!(text, "year,n\n2023,2\n2024,1\n");
}

#[test]
fn results_are_objects() {
    let sandbox = Sandbox::with_people();
    let fake = store(&sandbox);
    let query = "SELECT id FROM 's3://b/years/' ORDER BY id";
    sql(&sandbox, &fake, query, "-o s3://b/out/ids.csv").ok();
    assert_eq!(fake.get("b/out/ids.csv").unwrap(), b"id\n1\n2\n3\n");
    sql(&sandbox, &fake, query, "-o s3://b/out/ids.csv").fails(&["exists already"]);
    sql(&sandbox, &fake, query, "-o s3://b/years/ids.parquet").fails(&["is part of the table"]);
}

#[test]
fn missing_objects_are_told() {
    let sandbox = Sandbox::with_people();
    let fake = store(&sandbox);
    for table in ["s3://b/in/no.csv", "gs://b/in/no.parquet"] {
        let run = sql(&sandbox, &fake, &format!("SELECT * FROM '{table}'"), "");
        run.fails(&[table, "there is no such object"]);
    }
    let run = sql(&sandbox, &fake, "SELECT * FROM 's3://b/in/*.parquet'", "");
    run.fails(&["s3://b/in/*.parquet holds no tables"]);
}
