//! A client of a cluster.
//!
//! Every call of librados and librbd that can wait has a limit: of the connection and of commands
//! to the monitors ([`RbdTimeouts::connect`]), and of requests to the daemons that store objects
//! ([`RbdTimeouts::request`]). So a cluster that does not answer is an error after that time.

use std::sync::Arc;
use std::time::Duration;

use extant_space::{Error, ErrorKind, Result};

use crate::options::{ClusterOptions, RbdCache, RbdTimeouts};
use crate::sys::ClusterHandle;

/// A connected client. Clones share the connection, which ends with the last of them and of their
/// pools and images.
#[derive(Clone)]
pub struct Cluster {
    handle: Arc<ClusterHandle>,
    id: Arc<str>,
    request_timeout: Duration,
}

impl Cluster {
    /// Connects.
    ///
    /// # Errors
    /// `Unsupported` without librbd; `NotFound` without the configuration file, or without a key;
    /// `InvalidArgument` for an option that Ceph does not know; `PermissionDenied` for a key that
    /// the monitors refuse; `Io` if no monitor answers in time.
    pub fn connect(options: &ClusterOptions) -> Result<Self> {
        let handle = ClusterHandle::new(&format!("client.{}", options.id))?;
        configure(&handle, options)?;
        handle
            .connect()
            .map_err(|error| explain_connect(error, &handle, options))?;
        let seconds = handle.get("rados_osd_op_timeout")?;
        let seconds = seconds.parse::<f64>().unwrap_or_default();
        Ok(Self {
            handle: Arc::new(handle),
            id: options.id.as_str().into(),
            request_timeout: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        })
    }

    /// The identifier of the cluster.
    ///
    /// # Errors
    /// Those of the library.
    pub fn fsid(&self) -> Result<String> {
        self.handle.fsid()
    }

    /// The number by which watchers and lock owners name this client.
    pub fn client_number(&self) -> u64 {
        self.handle.instance()
    }

    /// The user, without `client.`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Cuts off the client at `address`, as watchers are listed, for `duration`: the cluster takes
    /// none of its requests any more.
    ///
    /// # Errors
    /// `PermissionDenied` without the right to do that (`profile rbd` has it); those of the
    /// monitors.
    pub fn block_client(&self, address: &str, duration: Duration) -> Result<()> {
        let command = serde_json::json!({
            "prefix": "osd blocklist",
            "blocklistop": "add",
            "addr": address,
            "expire": duration.as_secs_f64(),
        });
        let told = self.handle.monitor(&command.to_string());
        told.map(drop)
            .map_err(|error| self.explain(error.during("block client")))
    }

    pub(crate) fn handle(&self) -> &Arc<ClusterHandle> {
        &self.handle
    }

    /// The answer of the monitors to a command, both in JSON.
    pub(crate) fn ask(&self, command: &serde_json::Value) -> Result<serde_json::Value> {
        let answer = self.handle.monitor(&command.to_string());
        let answer = answer.map_err(|error| self.explain(error))?;
        serde_json::from_slice(&answer).map_err(|error| {
            Error::new(ErrorKind::Io).detail(format!("the monitors answer without JSON: {error}"))
        })
    }

    /// Says what an error of a request means.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match error.os_errno() {
            Some(libc::ETIMEDOUT) => error.detail(format!(
                "the cluster has not answered within {} s",
                self.request_timeout.as_secs()
            )),
            Some(libc::EPERM | libc::EACCES) => error
                .with_kind(ErrorKind::PermissionDenied)
                .detail(format!("client.{} may not do that", self.id))
                .advice("its capabilities are shown by: ceph auth get"),
            Some(libc::ESHUTDOWN) => error.detail(
                "the cluster has blocked this client: another one has taken over the image",
            ),
            Some(libc::ENOSPC) => error.detail("the cluster or the pool is full"),
            Some(libc::EDQUOT) => error.detail("the quota of the pool is used up"),
            _ => error,
        }
    }
}

fn configure(handle: &ClusterHandle, options: &ClusterOptions) -> Result<()> {
    let conf = options.conf.as_deref();
    let text = conf.map(|path| path.to_string_lossy());
    match (handle.read_conf(text.as_deref()), conf) {
        (Ok(()), _) => {}
        // The settings may say everything.
        (Err(error), None) if error.kind() == ErrorKind::NotFound => {}
        (Err(error), Some(path)) => return Err(error.during("read configuration").at(path)),
        (Err(error), None) => return Err(error.during("read configuration")),
    }
    // Their messages would be mixed with ours.
    for option in ["log_to_stderr", "err_to_stderr"] {
        handle.set(option, "false")?;
    }
    for (option, value) in &options.settings {
        handle.set(option, value).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument).detail(format!(
                "Ceph refuses the option {option}={value}: {}",
                error.kind().description()
            ))
        })?;
    }
    let RbdTimeouts { connect, request } = options.timeouts;
    for (option, limit, unset) in [
        ("client_mount_timeout", connect, 300.0),
        ("rados_mon_op_timeout", connect, 0.0),
        ("rados_osd_op_timeout", request, 0.0),
    ] {
        if handle.get(option)?.parse::<f64>() == Ok(unset) {
            handle.set(option, &limit.as_secs_f64().to_string())?;
        }
    }
    if options.cache == RbdCache::Off {
        handle.set("rbd_cache", "false")?;
    }
    Ok(())
}

fn explain_connect(error: Error, handle: &ClusterHandle, options: &ClusterOptions) -> Error {
    let id = &options.id;
    let hosts = handle.get("mon_host").unwrap_or_default();
    let timeout = handle.get("client_mount_timeout").unwrap_or_default();
    let key_advice = "keyring=FILE names a file with its key, id=ID another user";
    let error = error.during("connect");
    match error.os_errno() {
        _ if hosts.is_empty() => error
            .with_kind(ErrorKind::NotFound)
            .detail("no monitor of a cluster is configured")
            .advice("conf=FILE names a configuration file, mon_host=ADDRESS the monitors"),
        Some(libc::ETIMEDOUT) => error.detail(format!(
            "no monitor has answered within {} s: {hosts}",
            timeout.parse::<f64>().unwrap_or_default()
        )),
        Some(libc::EPERM | libc::EACCES) => error
            .with_kind(ErrorKind::PermissionDenied)
            .detail(format!(
                "the monitors refuse client.{id}: wrong key, no key, or no such user"
            ))
            .advice(key_advice),
        Some(libc::ENOENT) => error
            .detail(format!("no key for client.{id}"))
            .advice(key_advice),
        _ => error,
    }
}
