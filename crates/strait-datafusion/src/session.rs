//! Adds Strait to a session.

use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::SessionConfig;

use crate::options::StraitOptions;
use crate::rule::StraitJoinRule;

/// Adds Strait's joins to a DataFusion session.
pub trait WithStrait {
    /// Adds [`StraitJoinRule`] after all other rules. Also adds [`StraitOptions`] with default values, unless the
    /// configuration already has such options.
    ///
    /// Call it after `with_config`, because `with_config` replaces the configuration that has the options.
    ///
    /// ```
    /// use datafusion::execution::SessionStateBuilder;
    /// use datafusion::prelude::{SessionConfig, SessionContext};
    /// use strait_datafusion::WithStrait;
    ///
    /// let config = SessionConfig::new().with_target_partitions(4);
    /// let builder = SessionStateBuilder::new().with_config(config).with_default_features();
    /// let ctx = SessionContext::new_with_state(builder.with_strait().build());
    /// # let _ = ctx;
    /// ```
    fn with_strait(self) -> Self;
}

impl WithStrait for SessionStateBuilder {
    fn with_strait(mut self) -> Self {
        let config = self.config().get_or_insert_with(SessionConfig::new);
        let extensions = &mut config.options_mut().extensions;
        if extensions.get::<StraitOptions>().is_none() {
            extensions.insert(StraitOptions::default());
        }
        self.with_physical_optimizer_rule(Arc::new(StraitJoinRule))
    }
}
