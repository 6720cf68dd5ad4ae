//! Options of a client.

use std::path::PathBuf;
use std::time::Duration;

/// How a cluster is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// The configuration file; `None`: `$CEPH_CONF`, or Ceph's default places.
    pub conf: Option<PathBuf>,
    /// The user is `client.ID`.
    pub id: String,
    /// Options of Ceph, which count before those of the file.
    pub settings: Vec<(String, String)>,
    /// How long the cluster may take.
    pub timeouts: RbdTimeouts,
    /// Whether librbd caches.
    pub cache: RbdCache,
}

/// How long a cluster may take. An option of Ceph that is set in the configuration counts before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RbdTimeouts {
    /// To connect, and to answer a command to the monitors.
    pub connect: Duration,
    /// To answer one request of an image. Longer than the cluster needs to notice that a daemon has
    /// died, and to continue without it.
    pub request: Duration,
}

/// Caching in librbd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RbdCache {
    /// As Ceph's configuration says.
    Configured,
    /// None: a write that has ended is in the cluster.
    Off,
}

impl Default for RbdTimeouts {
    /// 15 s to connect, 90 s for a request: monitors miss a dead daemon after 20 s to 30 s.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            request: Duration::from_secs(90),
        }
    }
}

impl Default for ClusterOptions {
    /// The user `client.admin`, with the configuration in its default place.
    fn default() -> Self {
        Self {
            conf: None,
            id: "admin".to_owned(),
            settings: Vec::new(),
            timeouts: RbdTimeouts::default(),
            cache: RbdCache::Configured,
        }
    }
}
