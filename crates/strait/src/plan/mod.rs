mod statistics;
pub use statistics::Statistics;
#[derive(Debug, Clone)]
pub struct Plan;
impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("plan")
    }
}
