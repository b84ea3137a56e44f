//! Random queries with joins over the tables `t0`, `t1` and `t2`.

use datafusion::common::JoinType;
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::prelude::{DataFrame, Expr, SessionContext, col, lit};
use fastrand::Rng;

use crate::tables::Family;

/// A query, as SQL or as calls of the DataFrame API.
#[derive(Debug, Clone)]
pub(crate) enum Query {
    Sql {
        text: String,
        /// With this limit, any rows of the result of `text` may be returned, or the first ones if the rows are
        /// sorted.
        limit: Option<usize>,
        /// The number of columns by which the rows are sorted. They are the first columns.
        sorted_by: usize,
    },
    Frame(Frame),
}

/// Joins that SQL cannot name.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    join_type: JoinType,
    keys: usize,
    filter: Option<i64>,
    grouped: bool,
}

impl Query {
    pub(crate) fn random(rng: &mut Rng, families: &[Family]) -> Query {
        if rng.u8(..6) == 0 {
            return Query::Frame(Frame::random(rng, families.len()));
        }
        let mut of = Generator { rng, families };
        let (text, sorted_by) = match of.rng.u8(..14) {
            0..6 => (of.join(), 0),
            6..8 => (of.subquery(), 0),
            8 => (of.joins_of_groups(), 0),
            9 => (of.union(), 0),
            10 => (of.uses_order(), 0),
            _ => of.sorted(),
        };
        let one_in = if sorted_by > 0 { 3 } else { 8 };
        let limit = of.chance(one_in).then(|| of.rng.usize(..40));
        Query::Sql { text, limit, sorted_by }
    }

    /// Returns the data frame of the query with its limit, if it has one.
    pub(crate) async fn frame(&self, ctx: &SessionContext) -> Result<DataFrame> {
        match self {
            Query::Sql { text, limit: None, .. } => ctx.sql(text).await,
            Query::Sql { text, limit, .. } => ctx.sql(text).await?.limit(0, *limit),
            Query::Frame(frame) => frame.frame(ctx).await,
        }
    }

    pub(crate) fn limit(&self) -> Option<usize> {
        match self {
            Query::Sql { limit, .. } => *limit,
            Query::Frame(_) => None,
        }
    }

    /// Returns the number of columns by which the rows are sorted.
    pub(crate) fn sorted_by(&self) -> usize {
        match self {
            Query::Sql { sorted_by, .. } => *sorted_by,
            Query::Frame(_) => 0,
        }
    }

    /// Returns whether the query groups rows.
    pub(crate) fn groups(&self) -> bool {
        match self {
            Query::Sql { text, .. } => {
                text.contains("GROUP BY") || text.contains("SELECT DISTINCT")
            }
            Query::Frame(frame) => frame.grouped,
        }
    }

    pub(crate) fn without_limit(&self) -> Query {
        match self {
            Query::Sql { text, sorted_by, .. } => {
                Query::Sql { text: text.clone(), limit: None, sorted_by: *sorted_by }
            }
            Query::Frame(_) => self.clone(),
        }
    }
}

impl Frame {
    fn random(rng: &mut Rng, keys: usize) -> Frame {
        use JoinType::*;
        const TYPES: [JoinType; 10] = [
            Inner, Left, Right, Full, LeftSemi, RightSemi, LeftAnti, RightAnti, LeftMark, RightMark,
        ];
        Frame {
            join_type: TYPES[rng.usize(..TYPES.len())],
            keys: rng.usize(1..=keys),
            filter: rng.bool().then(|| rng.i64(..40)),
            grouped: rng.u8(..3) == 0,
        }
    }

    async fn frame(&self, ctx: &SessionContext) -> Result<DataFrame> {
        let renamed = |letter: char| {
            let mut columns = vec![col("id").alias(format!("{letter}id"))];
            columns.extend(
                (0..self.keys).map(|k| col(format!("k{k}")).alias(format!("{letter}k{k}"))),
            );
            columns.push(col("p0").alias(format!("{letter}p0")));
            columns
        };
        let left = ctx.table("t0").await?.select(renamed('a'))?;
        let right = ctx.table("t1").await?.select(renamed('b'))?;
        let names = |letter: char| -> Vec<String> {
            (0..self.keys).map(|k| format!("{letter}k{k}")).collect()
        };
        let (a, b) = (names('a'), names('b'));
        let [a, b] = [&a, &b].map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
        let filter = self.filter.map(|more: i64| (col("aid") + lit(more)).gt(col("bid")));
        let joined = left.join(right, self.join_type, &a, &b, filter)?;
        if !self.grouped {
            return Ok(joined);
        }
        use JoinType::*;
        let of_right = matches!(self.join_type, Right | RightSemi | RightAnti | RightMark);
        let mut by: Vec<Expr> = vec![col(if of_right { "bk0" } else { "ak0" })];
        if matches!(self.join_type, LeftMark | RightMark) {
            by.push(col("mark"));
        }
        joined.aggregate(by, vec![count(lit(1)).alias("n")])
    }
}

struct Generator<'a> {
    rng: &'a mut Rng,
    families: &'a [Family],
}

/// The columns that each relation has.
const COLUMNS: usize = 2;

impl Generator<'_> {
    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.rng.usize(..of.len())]
    }

    fn chance(&mut self, one_in: u8) -> bool {
        self.rng.u8(..one_in) == 0
    }

    /// Returns a relation with the columns `id`, the keys, and `p0`.
    fn relation(&mut self, table: usize) -> String {
        let keys: Vec<_> = (0..self.families.len()).map(|k| format!("k{k}")).collect();
        let keys = keys.join(", ");
        match self.rng.u8(..12) {
            0 => format!("(SELECT id, {keys}, p0 FROM t{table} WHERE id % 3 <> 1)"),
            1 => format!(
                "(SELECT min(id) AS id, {keys}, count(*) AS p0 FROM t{table} GROUP BY {keys})"
            ),
            2 => {
                let rest: Vec<_> = (1..self.families.len())
                    .map(|k| format!("first_value(k{k} ORDER BY id) AS k{k},"))
                    .collect();
                let rest = rest.join(" ");
                format!(
                    "(SELECT min(id) AS id, k0, {rest} max(p0) AS p0 FROM t{table} GROUP BY k0)"
                )
            }
            3 => format!(
                "(SELECT id, {keys}, p0 FROM t{table} UNION ALL SELECT id + 100000, {keys}, p0 FROM t{table})"
            ),
            4 => format!("(SELECT * FROM t{table} ORDER BY id LIMIT 50)"),
            _ => format!("t{table}"),
        }
    }

    /// Returns the conditions of a join of `left` with `right`.
    fn conditions(&mut self, left: &str, right: &str) -> String {
        let keys = self.rng.usize(1..=self.families.len());
        let first = self.rng.usize(..self.families.len());
        let mut all = Vec::new();
        for k in (first..first + keys).map(|k| k % self.families.len()) {
            all.push(self.key(k, left, right));
        }
        if self.chance(4) {
            all.push(self.residual(left, right));
        }
        all.join(" AND ")
    }

    fn key(&mut self, k: usize, left: &str, right: &str) -> String {
        let (a, b) = (format!("{left}.k{k}"), format!("{right}.k{k}"));
        if self.chance(6) {
            return format!("({a} IS NOT DISTINCT FROM {b})");
        }
        if !self.chance(5) {
            return format!("{a} = {b}");
        }
        match self.families[k] {
            Family::Integer => match self.rng.u8(..4) {
                0 => format!("{a} + 1 = {b}"),
                1 => format!("CAST({a} AS BIGINT) = CAST({b} AS BIGINT)"),
                2 => format!("{a} % 7 = {b} % 7"),
                _ => format!("CAST({a} AS VARCHAR) = CAST({b} AS VARCHAR)"),
            },
            Family::Text => match self.rng.u8(..2) {
                0 => format!("concat({a}, 'x') = concat({b}, 'x')"),
                _ => format!("upper({a}) = upper({b})"),
            },
            Family::Decimal | Family::Float => format!("{a} + 1 = {b} + 1"),
            _ => format!("coalesce({a}, {a}) = {b}"),
        }
    }

    /// Returns a condition over both sides that is not an equality.
    fn residual(&mut self, left: &str, right: &str) -> String {
        let (a, b) = (format!("{left}.id"), format!("{right}.id"));
        let number = self.rng.u8(..30);
        match self.rng.u8(..9) {
            0 => format!("{a} < {b}"),
            1 => format!("{a} + {b} > {number}"),
            2 => format!("{a} % 3 <> {b} % 2"),
            3 => format!("({left}.p0 IS NULL OR {b} > {number})"),
            4 => format!("{left}.p0 <> {right}.p0"),
            5 => format!("{a} > {number}"),
            6 => format!("{b} <> {number}"),
            7 => "random() >= 0.0".to_string(),
            _ => format!("({left}.k0 IS DISTINCT FROM {right}.k0)"),
        }
    }

    /// Returns a join of two or three relations, and the letters of the relations that its output has.
    fn from(&mut self) -> (String, Vec<char>) {
        let mut letters = vec!['a'];
        let mut text = format!("{} a", self.relation(0));
        let joins = if self.chance(4) { 2 } else { 1 };
        for number in 1..=joins {
            let right = ['a', 'b', 'c'][number];
            let kind = self.one(&[
                "JOIN",
                "JOIN",
                "LEFT JOIN",
                "RIGHT JOIN",
                "FULL JOIN",
                "LEFT SEMI JOIN",
                "RIGHT SEMI JOIN",
                "LEFT ANTI JOIN",
                "RIGHT ANTI JOIN",
            ]);
            let left = letters[self.rng.usize(..letters.len())];
            let on = self.conditions(&left.to_string(), &right.to_string());
            text = format!("{text} {kind} {} {right} ON {on}", self.relation(number));
            match kind {
                "LEFT SEMI JOIN" | "LEFT ANTI JOIN" => {}
                "RIGHT SEMI JOIN" | "RIGHT ANTI JOIN" => letters = vec![right],
                _ => letters.push(right),
            }
        }
        (text, letters)
    }

    fn join(&mut self) -> String {
        let (from, letters) = self.from();
        let filter = if self.chance(5) {
            let letter = letters[self.rng.usize(..letters.len())];
            format!(" WHERE {letter}.id % 5 <> 2")
        } else {
            String::new()
        };
        self.select(&letters, &format!("{from}{filter}"))
    }

    /// Returns a query over a join: its rows, or aggregates of them.
    fn select(&mut self, letters: &[char], from: &str) -> String {
        let letter = letters[self.rng.usize(..letters.len())];
        let k = self.rng.usize(..self.families.len());
        let ids: Vec<_> = letters.iter().map(|letter| format!("{letter}.id")).collect();
        match self.rng.u8(..12) {
            0 => format!("SELECT count(*) FROM {from}"),
            1 => {
                format!("SELECT count(*), sum({letter}.id), min({letter}.k{k}) IS NULL FROM {from}")
            }
            2 | 3 => {
                let sums: Vec<_> = ids.iter().map(|id| format!("sum({id})")).collect();
                let sums = sums.join(", ");
                format!("SELECT {letter}.k{k}, count(*), {sums} FROM {from} GROUP BY {letter}.k{k}")
            }
            4 => format!("SELECT DISTINCT {letter}.k{k}, {letter}.id % 10 FROM {from}"),
            5 => {
                let by = ids.join(", ");
                format!(
                    "SELECT {by}, rank() OVER (PARTITION BY {letter}.k{k} ORDER BY {by}) FROM {from}"
                )
            }
            6 => format!(
                "SELECT {} FROM {from} ORDER BY {} LIMIT 17",
                ids.join(", "),
                ids.join(", ")
            ),
            7 => format!("SELECT 1 FROM {from}"),
            8 => {
                let all: Vec<_> = letters.iter().map(|letter| format!("{letter}.*")).collect();
                format!("SELECT {} FROM {from}", all.join(", "))
            }
            _ => {
                let columns = self.rng.usize(1..=4);
                let columns: Vec<_> = (0..columns)
                    .map(|number| {
                        let letter = letters[self.rng.usize(..letters.len())];
                        let of = self.rng.usize(..COLUMNS + self.families.len());
                        let column = match of {
                            0 => "id".to_string(),
                            1 => "p0".to_string(),
                            _ => format!("k{}", of - COLUMNS),
                        };
                        format!("{letter}.{column} AS c{number}")
                    })
                    .collect();
                format!("SELECT {} FROM {from}", columns.join(", "))
            }
        }
    }

    /// Returns a join whose rows are sorted, and the number of columns by which they are.
    fn sorted(&mut self) -> (String, usize) {
        let (from, letters) = self.from();
        let columns = self.rng.usize(1..=2);
        let mut shown = Vec::new();
        let mut order = Vec::new();
        for number in 0..columns {
            let letter = letters[self.rng.usize(..letters.len())];
            let of = if self.chance(2) { "id" } else { "k0" };
            shown.push(format!("{letter}.{of} AS o{number}"));
            let direction = self.one(&[" NULLS FIRST", " NULLS FIRST", "", " DESC"]);
            order.push(format!("{letter}.{of}{direction}"));
        }
        shown.extend(letters.iter().map(|letter| format!("{letter}.id AS {letter}id")));
        let (shown, order) = (shown.join(", "), order.join(", "));
        (format!("SELECT {shown} FROM {from} ORDER BY {order}"), columns)
    }

    /// Returns a query that uses the order of a join, but whose rows have no order.
    fn uses_order(&mut self) -> String {
        let (from, letters) = self.from();
        let letter = letters[self.rng.usize(..letters.len())];
        let other = letters[self.rng.usize(..letters.len())];
        let of = if self.chance(2) { "id" } else { "k0" };
        let by = format!("{letter}.{of} NULLS FIRST");
        match self.rng.u8(..4) {
            0 => format!(
                "SELECT {other}.id, sum({letter}.id) OVER (PARTITION BY {other}.id % 3 ORDER BY {by}) FROM {from}"
            ),
            1 => format!(
                "SELECT {letter}.{of} AS o, rank() OVER (ORDER BY {by}), count(*) OVER () FROM {from}"
            ),
            2 => format!(
                "SELECT {other}.id % 4 AS g, first_value({letter}.{of} ORDER BY {by}) AS f, \
                 last_value({letter}.{of} ORDER BY {by}) AS l, count(*) AS n FROM {from} GROUP BY {other}.id % 4"
            ),
            _ => {
                let limit = self.rng.usize(..60);
                format!(
                    "SELECT count(*), min(o), max(o) FROM \
                     (SELECT {letter}.id AS o FROM {from} ORDER BY {letter}.id LIMIT {limit})"
                )
            }
        }
    }

    /// Returns a query with `IN`, `NOT IN`, `EXISTS` or `NOT EXISTS`, alone or under `OR`.
    fn subquery(&mut self) -> String {
        let k = self.rng.usize(..self.families.len());
        let inner = self.relation(1);
        let filter = if self.chance(3) { " WHERE b.id % 4 <> 0" } else { "" };
        let condition = match self.rng.u8(..7) {
            0 | 1 => format!("a.k{k} IN (SELECT b.k{k} FROM {inner} b{filter})"),
            2 | 3 => format!("a.k{k} NOT IN (SELECT b.k{k} FROM {inner} b{filter})"),
            4 => format!("EXISTS (SELECT 1 FROM {inner} b WHERE {})", self.conditions("a", "b")),
            5 => {
                format!("NOT EXISTS (SELECT 1 FROM {inner} b WHERE {})", self.conditions("a", "b"))
            }
            _ => format!(
                "a.k{k} NOT IN (SELECT b.k{k} FROM {inner} b WHERE b.k{k} IS NOT NULL) AND a.k{k} IS NOT NULL"
            ),
        };
        let condition = match self.rng.u8(..3) {
            0 => format!("({condition} OR a.id % 7 = 0)"),
            _ => condition,
        };
        let from = format!("{} a WHERE {condition}", self.relation(0));
        self.select(&['a'], &from)
    }

    /// Returns a join of groups. The partitions of the groups are those that the join needs.
    fn joins_of_groups(&mut self) -> String {
        let kind = self.one(&["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]);
        let k = self.rng.usize(..self.families.len());
        let inner = self.one(&["JOIN", "LEFT JOIN"]);
        let on = self.key(k, "x", "y");
        format!(
            "SELECT a.k{k} AS c0, b.k{k} AS c1, n, m FROM \
             (SELECT x.k{k}, count(*) AS n FROM t0 x {inner} t2 y ON {on} GROUP BY x.k{k}) a {kind} \
             (SELECT k{k}, count(*) AS m FROM t1 GROUP BY k{k}) b ON a.k{k} = b.k{k}"
        )
    }

    fn union(&mut self) -> String {
        let k = self.rng.usize(..self.families.len());
        let [first, second] = [self.conditions("a", "b"), self.conditions("a", "b")];
        let [kind, other] = [(); 2].map(|()| self.one(&["JOIN", "LEFT JOIN", "LEFT SEMI JOIN"]));
        format!(
            "SELECT g, count(*), sum(i) FROM (\
             SELECT a.k{k} AS g, a.id AS i FROM t0 a {kind} t1 b ON {first} UNION ALL \
             SELECT a.k{k} AS g, a.id AS i FROM t0 a {other} t1 b ON {second}) GROUP BY g"
        )
    }
}
