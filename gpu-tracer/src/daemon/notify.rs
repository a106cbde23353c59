//! Tells the service manager how things are: `sd_notify(3)`, protocol `NOTIFY_SOCKET`.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// The way to the service manager; nothing where none asked to be told.
#[derive(Debug)]
pub(super) struct Manager {
    socket: Option<UnixDatagram>,
    /// Within this time it wants a sign of life.
    watchdog: Option<Duration>,
}

impl Manager {
    /// From `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub(super) fn of_environment() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let socket = variable("NOTIFY_SOCKET").and_then(|path| connect(path.as_bytes()).ok());
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|_| ours).map(Duration::from_micros);
        Self { socket, watchdog }
    }

    /// Nobody to tell.
    pub(super) const fn silent() -> Self {
        Self { socket: None, watchdog: None }
    }

    /// How often to give a sign of life, if anybody waits for one.
    pub(super) fn sign_of_life(&self) -> Option<Duration> {
        self.watchdog.filter(|_| self.socket.is_some()).map(|within| within / 2)
    }

    /// Sends assignments, one a line (`READY=1`). That nobody hears is no error.
    pub(super) fn tell(&self, text: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(text.as_bytes());
        }
    }
}

fn connect(path: &[u8]) -> std::io::Result<UnixDatagram> {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::SocketAddr;
    let socket = UnixDatagram::unbound()?;
    match path {
        [b'@', name @ ..] => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        path => socket.connect(std::ffi::OsStr::from_bytes(path))?,
    }
    // The manager may be slow to read; that must not keep us.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_arrives_as_one_message() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let ours = Manager {
            socket: Some(connect(path.as_os_str().as_bytes()).unwrap()),
            watchdog: Some(Duration::from_secs(8)),
        };
        ours.tell("READY=1\nSTATUS=ok");
        let mut buffer = [0; 64];
        let length = manager.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1\nSTATUS=ok");
        assert_eq!(ours.sign_of_life(), Some(Duration::from_secs(4)));
    }
}
