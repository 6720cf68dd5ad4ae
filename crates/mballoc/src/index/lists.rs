//! The order lists of the kernel before they became xarrays: one list per order, each with a lock,
//! in insertion order. Compiled for comparison only.

use hashlink::LinkedHashSet;

use super::shortest_of;
use crate::bits::ORDERS;
use crate::sync::{Mutex, lock};

pub(crate) struct OrderLists {
    lists: [Mutex<LinkedHashSet<u32>>; ORDERS],
}

impl OrderLists {
    pub(crate) fn new() -> Self {
        Self {
            lists: std::array::from_fn(|_| Mutex::new(LinkedHashSet::new())),
        }
    }

    /// Moves a group whose longest run changed its class.
    pub(crate) fn change(&self, group: u32, from: Option<usize>, to: Option<usize>) {
        let (from, to) = (from.map(order_of), to.map(order_of));
        if from == to {
            return;
        }
        if let Some(order) = from {
            lock(&self.lists[order]).remove(&group);
        }
        if let Some(order) = to {
            lock(&self.lists[order]).insert(group);
        }
    }

    /// The first group that satisfies `good` in the lists from `order` on.
    pub(crate) fn find(&self, order: usize, mut good: impl FnMut(u32) -> bool) -> Option<u32> {
        self.lists[order.min(ORDERS)..].iter().find_map(|list| {
            // Checked under the lock, as in the kernel.
            lock(list).iter().copied().find(|&group| good(group))
        })
    }

    pub(crate) fn check(&self, group: u32, largest: Option<usize>) -> Result<(), String> {
        let expected = largest.map(order_of);
        for (order, list) in self.lists.iter().enumerate() {
            if lock(list).contains(&group) != (expected == Some(order)) {
                return Err(format!(
                    "group {group} is wrong in the list of order {order}"
                ));
            }
        }
        Ok(())
    }
}

fn order_of(class: usize) -> usize {
    shortest_of(class).ilog2() as usize
}
