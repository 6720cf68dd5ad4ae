//! How a pool of images is reached in a Ceph cluster.

use std::path::PathBuf;

use extant_rbd::{ClusterOptions, RbdName};
use extant_space::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// A pool of a cluster, or a namespace in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterPlace {
    /// Ceph's name of the pool.
    pub pool: String,
    /// The namespace in it; `None`: the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The configuration file; `None`: `$CEPH_CONF`, or Ceph's default places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conf: Option<PathBuf>,
    /// The user is `client.ID`; `None`: `client.admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The file with the user's key; `None`: as the configuration says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyring: Option<PathBuf>,
}

impl ClusterPlace {
    /// Refuses names that Ceph's own tools cannot say.
    pub(crate) fn check(&self) -> Result<()> {
        let namespace = self.namespace.as_deref();
        for name in [Some(self.pool.as_str()), namespace].into_iter().flatten() {
            if name.is_empty() || name.contains(['/', '@']) {
                return Err(Error::new(ErrorKind::InvalidArgument)
                    .detail(format!("{name:?} names no pool or namespace of a cluster")));
            }
        }
        Ok(())
    }

    /// The name of an image there, without options.
    pub(crate) fn image(&self, image: &str) -> RbdName {
        RbdName {
            pool: self.pool.clone(),
            namespace: self.namespace.clone().unwrap_or_default(),
            image: image.to_owned(),
            snapshot: None,
            options: Vec::new(),
        }
    }

    /// For messages: `rbd:POOL` or `rbd:POOL/NAMESPACE`.
    pub(crate) fn path(&self) -> PathBuf {
        let image = self.image("").to_string();
        image.trim_end_matches('/').into()
    }

    pub(crate) fn options(&self) -> ClusterOptions {
        let mut options = ClusterOptions {
            conf: self.conf.clone(),
            ..ClusterOptions::default()
        };
        if let Some(id) = &self.id {
            options.id.clone_from(id);
        }
        if let Some(keyring) = &self.keyring {
            let keyring = keyring.display().to_string();
            options.settings.push(("keyring".to_owned(), keyring));
        }
        options
    }
}
