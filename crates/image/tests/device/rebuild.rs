//! Requests for a cluster while a writer builds it.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use extant_blockdev::{
    Device, Geometry, MemoryDevice, Operation, Persistence, RangeStatus, Request,
};
use extant_image::device::{ImageDevice, Store};
use extant_space::{ByteRange, Error, ErrorKind, Result};
use extant_testkit::require;

use crate::support::{
    Ground, KIB, MIB, assert_checks, assert_reads, qcow2_options, qemu, qemu_img, read, write,
};

const CLUSTER: u64 = 64 * KIB;
/// Time for a request that does not wait.
const SOON: Duration = Duration::from_millis(500);
const LATEST: Duration = Duration::from_secs(30);

/// A store that holds writes that begin with a mark until the test lets them pass.
struct Gated {
    memory: MemoryDevice,
    gates: Mutex<Vec<Gate>>,
}

struct Gate {
    mark: u8,
    arrived: Sender<()>,
    pass: Receiver<()>,
}

impl Gated {
    /// Holds the next write that begins with `mark`. It has arrived when the first channel says
    /// so, and passes by the second one.
    fn hold(&self, mark: u8) -> (Receiver<()>, Sender<()>) {
        let (arrived, is_there) = channel();
        let (go, pass) = channel();
        self.gates.lock().unwrap().push(Gate {
            mark,
            arrived,
            pass,
        });
        (is_there, go)
    }
}

impl Device for Gated {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        let is_marked = |mark: u8| {
            requests.iter().any(|request| match &request.operation {
                Operation::Write { from, .. } => {
                    from.iter().any(|part| part.first() == Some(&mark))
                }
                _ => false,
            })
        };
        let gate = {
            let mut gates = self.gates.lock().unwrap();
            let found = gates.iter().position(|gate| is_marked(gate.mark));
            found.map(|at| gates.remove(at))
        };
        if let Some(gate) = gate {
            gate.arrived.send(()).unwrap();
            gate.pass.recv_timeout(LATEST).unwrap();
        }
        self.memory.submit(requests);
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.memory.status(range, visit)
    }
}

impl Store for Gated {
    fn file_bytes(&self) -> Result<u64> {
        Ok(self.memory.geometry().size)
    }

    fn resize(&self, _: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported))
    }
}

/// The request after the discard, while the cluster is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Second {
    Write,
    Assign,
}

#[test]
fn request_after_a_discard_is_not_undone_by_a_write_that_began_before() {
    require!(qemu_img());
    for second in [Second::Write, Second::Assign] {
        let ground = Ground::new();
        let (raw, path) = (ground.path("a.raw"), ground.path("a.qcow2"));
        // A pattern without the marks, which compresses.
        std::fs::write(&raw, vec![1; 4 * CLUSTER as usize]).unwrap();
        qemu(&[
            &"convert", &"-c", &"-f", &"raw", &"-O", &"qcow2", &raw, &path,
        ]);
        let memory = MemoryDevice::new(4 * MIB);
        let bytes = std::fs::read(&path).unwrap();
        memory.write_at(&bytes, 0, Persistence::Cached).unwrap();
        let store = Arc::new(Gated {
            memory,
            gates: Mutex::default(),
        });
        let image = Arc::new(ImageDevice::open_store(store.clone(), &qcow2_options()).unwrap());
        write(&*image, 3 * CLUSTER, &vec![3; CLUSTER as usize]);

        // A batch writes to a mapped cluster, and to one that has to be built. The first write
        // holds it after both were planned.
        let (planned, go_on) = store.hold(0xa1);
        let (built, go_end) = store.hold(0xa2);
        let device = Arc::clone(&image);
        let first = thread::spawn(move || {
            let parts: [&[u8]; 2] = [&[0xa1; 512], &[0xa2; 512]];
            let mut requests = [3 * CLUSTER, 0].map(|offset| {
                let part = parts[usize::from(offset == 0)];
                Request::new(Operation::Write {
                    offset,
                    from: [part].into_iter().collect(),
                    persistence: Persistence::Cached,
                })
            });
            device.submit(&mut requests);
            for request in requests {
                request.into_result().unwrap();
            }
        });
        planned.recv_timeout(LATEST).unwrap();
        image.discard(ByteRange::new(0, CLUSTER)).unwrap();
        go_on.send(()).unwrap();
        built.recv_timeout(LATEST).unwrap();
        let device = Arc::clone(&image);
        let (ended, end) = channel();
        let later = thread::spawn(move || {
            match second {
                Second::Write => write(&*device, 4 * KIB, &[0xb1; 512]),
                Second::Assign => device.assign(ByteRange::new(0, CLUSTER)).map(drop).unwrap(),
            }
            ended.send(()).unwrap();
        });
        // It may wait for the first writer.
        let _ = end.recv_timeout(SOON);
        go_end.send(()).unwrap();
        first.join().unwrap();
        later.join().unwrap();

        let mut wanted = vec![1; 4 * CLUSTER as usize];
        wanted[3 * CLUSTER as usize..].fill(3);
        wanted[3 * CLUSTER as usize..][..512].fill(0xa1);
        wanted[..CLUSTER as usize].fill(0);
        wanted[..512].fill(0xa2);
        if second == Second::Write {
            wanted[4 << 10..][..512].fill(0xb1);
        }
        assert!(
            read(&*image, 0, 4 * CLUSTER) == wanted,
            "{second:?} is lost"
        );
        image.flush().unwrap();
        drop(Arc::into_inner(image).unwrap());
        let mut bytes = vec![0; 4 * MIB as usize];
        store.memory.read_at(&mut bytes, 0).unwrap();
        std::fs::write(&path, bytes).unwrap();
        assert_checks(&path);
        assert_reads(&path, &wanted);
    }
}
