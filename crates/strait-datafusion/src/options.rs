//! The settings of Strait's joins in a session.

use datafusion::common::config::ConfigExtension;
use datafusion::common::{DataFusionError, Result, extensions_options};
use datafusion::config::ConfigOptions;
use strait::{Algorithm, Processor};

extensions_options! {
    /// The settings of Strait's joins. In SQL, the prefix of their names is `strait`.
    ///
    /// ```
    /// use datafusion::prelude::SessionConfig;
    /// use strait_datafusion::StraitOptions;
    ///
    /// let mut options = StraitOptions::default();
    /// options.device = "cpu".to_string();
    /// let config = SessionConfig::new().with_option_extension(options);
    /// # drop(config);
    /// ```
    pub struct StraitOptions {
        /// Whether Strait replaces joins.
        pub enabled: bool, default = true

        /// Where joins run: `auto`, `cpu`, `gpu`, or a GPU with a number, such as `gpu:1`. With `auto`, a join runs on a
        /// GPU if Strait predicts that it is faster there.
        pub device: String, default = "auto".to_string()

        /// The most GPU memory that one join may hold, in bytes. 0 means nine tenths of the free GPU memory.
        pub gpu_memory: u64, default = 0

        /// The algorithm, such as `no-partition`, `radix` or `spill`. With `auto`, Strait chooses it for each join.
        pub algorithm: String, default = "auto".to_string()

        /// If both tables are known to have fewer rows than this number, Strait declines the join.
        pub min_rows: usize, default = 0

        /// Whether Strait replaces a join whose order is used, for example by `ORDER BY`, if a table or another operator
        /// has this order without a sort for it. Strait's joins do not keep the order of their inputs, so a sort of
        /// their output restores it. DataFusion's own join needs no sort, but fails if its build side does not fit
        /// memory. If DataFusion sorts the probe side, Strait always replaces the join, and sorts its output instead.
        pub restore_order: bool, default = false

        /// Whether Strait also replaces sort-merge joins, and removes the sorts of their inputs.
        pub sort_merge_joins: bool, default = false
    }
}

impl ConfigExtension for StraitOptions {
    const PREFIX: &'static str = "strait";
}

/// The settings, checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) enabled: bool,
    pub(crate) device: Processor,
    pub(crate) gpu_memory: Option<u64>,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) min_rows: usize,
    pub(crate) restore_order: bool,
    pub(crate) sort_merge_joins: bool,
    /// DataFusion's option: whether the smaller input becomes the left one.
    pub(crate) join_reordering: bool,
}

impl Settings {
    /// Returns the settings of a session, or the defaults if the session has none.
    pub(crate) fn of(config: &ConfigOptions) -> Result<Settings> {
        let default = StraitOptions::default();
        let options = config.extensions.get::<StraitOptions>().unwrap_or(&default);
        let wrong = |name: &str, why: strait::Error| {
            DataFusionError::Configuration(format!("strait.{name}: {why}"))
        };
        let algorithm = match options.algorithm.as_str() {
            "auto" => None,
            name => Some(name.parse().map_err(|why| wrong("algorithm", why))?),
        };
        Ok(Settings {
            enabled: options.enabled,
            device: options.device.parse().map_err(|why| wrong("device", why))?,
            gpu_memory: (options.gpu_memory > 0).then_some(options.gpu_memory),
            algorithm,
            min_rows: options.min_rows,
            restore_order: options.restore_order,
            sort_merge_joins: options.sort_merge_joins,
            join_reordering: config.optimizer.join_reordering,
        })
    }
}
