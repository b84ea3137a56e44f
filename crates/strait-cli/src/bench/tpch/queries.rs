//! The 22 queries.

macro_rules! queries {
    ($($number:literal),*) => {
        /// The text of each query, in the order of their numbers.
        pub(super) const QUERIES: [&str; 22] = [$(include_str!(concat!(
            "../../../../strait-datafusion/queries/tpch/q",
            $number,
            ".sql"
        ))),*];
    };
}

queries!(
    "01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "13", "14", "15", "16",
    "17", "18", "19", "20", "21", "22"
);
