//! Sockets opened by the parent: systemd, and clients using libnbd (`LISTEN_FDS`).

use std::env;
use std::io;
use std::os::unix::net::UnixListener;

use extant_export::BoundSocket;
use extant_space::{Error, ErrorKind, Result};
use listenfd::ListenFd;

/// The name (`FileDescriptorName=` of systemd) of a socket for virtual machines.
const VHOST_USER: &str = "vhost-user";

/// The sockets by their use; none where the program was started otherwise.
#[derive(Default)]
pub(super) struct Handed {
    pub(super) nbd: Vec<BoundSocket>,
    pub(super) vhost_user: Vec<UnixListener>,
}

impl Handed {
    pub(super) fn take() -> Result<Self> {
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut sockets = ListenFd::from_env();
        let mut handed = Self::default();
        for at in 0..sockets.len() {
            let is_vhost_user = names.next() == Some(VHOST_USER);
            handed
                .add(&mut sockets, at, is_vhost_user)
                .map_err(|error| unusable(at, &error))?;
        }
        Ok(handed)
    }

    fn add(&mut self, sockets: &mut ListenFd, at: usize, is_vhost_user: bool) -> io::Result<()> {
        // A socket of another kind is kept, and can be requested again.
        match sockets.take_unix_listener(at) {
            Ok(Some(socket)) if is_vhost_user => self.vhost_user.push(socket),
            Ok(Some(socket)) => self.nbd.push(BoundSocket::Unix(socket)),
            Err(error) if is_vhost_user => return Err(error),
            _ => match sockets.take_tcp_listener(at)? {
                Some(socket) => self.nbd.push(BoundSocket::Tcp(socket)),
                None => return Err(io::ErrorKind::InvalidInput.into()),
            },
        }
        Ok(())
    }
}

fn unusable(at: usize, error: &io::Error) -> Error {
    Error::new(ErrorKind::InvalidArgument)
        .detail(format!(
            "descriptor {} of LISTEN_FDS is not a stream socket of its kind: {error}",
            at + 3
        ))
        .during("take a socket")
}
