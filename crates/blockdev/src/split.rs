//! Splitting requests at a driver's limits.
//!
//! Parts of one request are passed to the driver together, with those of all others in the batch,
//! so that they are in flight at the same time up to the depth of the driver's queue.

use std::mem;

use crate::{Geometry, Operation, ReadBuffers, Request, WriteBuffers};

/// Admits, cuts and runs `requests`: `execute` completes requests that each fit the limits.
///
/// A request that is not admitted fails alone. One of no bytes succeeds without being executed.
pub fn submit_within(
    geometry: &Geometry,
    requests: &mut [Request<'_>],
    execute: impl FnOnce(&mut [Request<'_>]),
) {
    if requests
        .iter()
        .all(|request| fits(geometry, &request.operation))
    {
        return execute(requests);
    }
    let mut pieces = Vec::with_capacity(requests.len());
    let mut owners = Vec::with_capacity(requests.len());
    let mut refused = Vec::new();
    for (owner, request) in requests.iter_mut().enumerate() {
        match geometry.admit(&request.operation) {
            Ok(()) => cut(&mut request.operation, geometry, &mut |piece| {
                pieces.push(Request::new(piece));
                owners.push(owner);
            }),
            Err(error) => refused.push((owner, error)),
        }
    }
    if !pieces.is_empty() {
        execute(&mut pieces);
    }
    let results: Vec<_> = pieces.into_iter().map(Request::into_result).collect();
    for request in requests.iter_mut() {
        request.complete(Ok(()));
    }
    for (owner, result) in owners.into_iter().zip(results) {
        requests[owner].complete(result);
    }
    for (owner, error) in refused {
        requests[owner].complete(Err(error));
    }
}

/// Nothing to refuse, to cut or to leave out.
fn fits(geometry: &Geometry, operation: &Operation<'_>) -> bool {
    let length = operation.start_and_length().map_or(1, |(_, length)| length);
    let most = match operation {
        Operation::Read { .. } | Operation::Write { .. } => geometry.limits.transfer,
        Operation::Flush => u64::MAX,
        Operation::Discard(_) => geometry.limits.discard.bytes,
        Operation::WriteZeroes(..) => geometry.limits.write_zeroes.bytes,
        Operation::Assign(_) => geometry.limits.assign.bytes,
    };
    (1..=most).contains(&length) && geometry.admit(operation).is_ok()
}

/// Hands out `operation` in pieces that each fit the limits of `geometry`; none for no bytes.
fn cut<'s>(
    operation: &'s mut Operation<'_>,
    geometry: &Geometry,
    push: &mut impl FnMut(Operation<'s>),
) {
    let limits = &geometry.limits;
    match operation {
        Operation::Read { offset, into } => {
            let mut parts = into.iter_mut();
            let mut part: &mut [u8] = &mut [];
            let mut at = *offset;
            loop {
                let mut piece = ReadBuffers::new();
                let mut room = limits.transfer;
                while room > 0 {
                    if part.is_empty() {
                        match parts.next() {
                            Some(next) => part = next,
                            None => break,
                        }
                        continue;
                    }
                    let most = usize::try_from(room).unwrap_or(usize::MAX).min(part.len());
                    let (now, later) = mem::take(&mut part).split_at_mut(most);
                    room -= now.len() as u64;
                    piece.push(now);
                    part = later;
                }
                if piece.is_empty() {
                    return;
                }
                let offset = at;
                at += limits.transfer - room;
                push(Operation::Read {
                    offset,
                    into: piece,
                });
            }
        }
        Operation::Write {
            offset,
            from,
            persistence,
        } => {
            let mut parts = from.iter();
            let mut part: &[u8] = &[];
            let mut at = *offset;
            loop {
                let mut piece = WriteBuffers::new();
                let mut room = limits.transfer;
                while room > 0 {
                    if part.is_empty() {
                        match parts.next() {
                            Some(next) => part = next,
                            None => break,
                        }
                        continue;
                    }
                    let most = usize::try_from(room).unwrap_or(usize::MAX).min(part.len());
                    let (now, later) = part.split_at(most);
                    room -= now.len() as u64;
                    piece.push(now);
                    part = later;
                }
                if piece.is_empty() {
                    return;
                }
                let offset = at;
                at += limits.transfer - room;
                push(Operation::Write {
                    offset,
                    from: piece,
                    persistence: *persistence,
                });
            }
        }
        Operation::Flush => push(Operation::Flush),
        Operation::Discard(range) => {
            range
                .chunks(limits.discard.bytes)
                .for_each(|piece| push(Operation::Discard(piece)));
        }
        Operation::WriteZeroes(range, zeroing) => {
            let zeroing = *zeroing;
            range
                .chunks(limits.write_zeroes.bytes)
                .for_each(|piece| push(Operation::WriteZeroes(piece, zeroing)));
        }
        Operation::Assign(range) => {
            range
                .chunks(limits.assign.bytes)
                .for_each(|piece| push(Operation::Assign(piece)));
        }
    }
}

#[cfg(test)]
mod tests {
    use extant_space::{ByteRange, Error, ErrorKind};
    use proptest::prelude::*;

    use super::*;
    use crate::{Features, Limits, Persistence, RangeLimit};

    fn geometry(transfer: u64, assign: u64) -> Geometry {
        Geometry {
            size: 1 << 40,
            logical_block: 512,
            physical_block: 4096,
            limits: Limits {
                transfer,
                assign: RangeLimit::at_most(assign),
                ..Limits::NONE
            },
            features: Features::empty(),
        }
    }

    #[test]
    fn huge_assign_is_cut_at_the_limit_and_handed_over_at_once() {
        let mut seen = Vec::new();
        let mut requests = [Request::new(Operation::Assign(ByteRange::new(
            512,
            100 << 30,
        )))];
        submit_within(&geometry(1 << 20, 1 << 30), &mut requests, |pieces| {
            for piece in pieces {
                seen.push(piece.operation.range().unwrap());
                piece.complete(Ok(()));
            }
        });
        assert_eq!(seen.len(), 100);
        assert_eq!(seen[0], ByteRange::new(512, 1 << 30));
        assert_eq!(seen[99], ByteRange::new(99 << 30, 100 << 30));
        let [request] = requests;
        request.into_result().unwrap();
    }

    #[test]
    fn refused_request_fails_alone_and_names_its_range() {
        let (mut a, mut b) = ([0; 512], [0; 100]);
        let mut requests = [Request::read(0, &mut a), Request::read(512, &mut b)];
        submit_within(&geometry(1 << 20, 1 << 30), &mut requests, |pieces| {
            assert_eq!(pieces.len(), 1);
            pieces[0].complete(Ok(()));
        });
        let [first, second] = requests;
        first.into_result().unwrap();
        let error = second.into_result().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            error.to_string(),
            "read bytes 512 to 612: not in whole blocks of 512 bytes"
        );
    }

    #[test]
    fn one_failed_piece_fails_the_request_with_the_range_of_the_piece() {
        let data = [7; 4096];
        let mut requests = [Request::write(0, &data, Persistence::Fua)];
        submit_within(&geometry(1024, 1), &mut requests, |pieces| {
            for piece in pieces {
                let range = piece.operation.range().unwrap();
                piece.complete(match range.start() {
                    2048 => Err(Error::new(ErrorKind::Io).in_range(range)),
                    _ => Ok(()),
                });
            }
        });
        let [request] = requests;
        let error = request.into_result().unwrap_err();
        assert_eq!(error.range(), Some(ByteRange::new(2048, 3072)));
    }

    proptest! {
        #[test]
        fn pieces_of_a_write_are_its_bytes_in_order(
            lengths in prop::collection::vec(0usize..3000, 0..8),
            transfer in 1u64..10,
        ) {
            let total: usize = lengths.iter().sum();
            let data: Vec<u8> = (0..total).map(|at| (at % 251) as u8).collect();
            let mut rest = &data[..];
            let from: WriteBuffers<'_> = lengths
                .iter()
                .map(|&length| {
                    let (part, later) = rest.split_at(length);
                    rest = later;
                    part
                })
                .collect();
            let operation = Operation::Write { offset: 512, from, persistence: Persistence::Cached };
            let mut geometry = geometry(transfer * 512, 1);
            geometry.logical_block = 1;
            let mut seen = Vec::new();
            let mut requests = [Request::new(operation)];
            submit_within(&geometry, &mut requests, |pieces| {
                for piece in pieces {
                    let Operation::Write { offset, from, .. } = &piece.operation else { unreachable!() };
                    assert_eq!(*offset, 512 + seen.len() as u64);
                    assert!(from.iter().map(|part| part.len() as u64).sum::<u64>() <= transfer * 512);
                    from.iter().for_each(|part| seen.extend_from_slice(part));
                    piece.complete(Ok(()));
                }
            });
            prop_assert_eq!(&seen, &data);
            prop_assert!(matches!(requests[0].result(), Some(Ok(()))));
        }
    }
}
