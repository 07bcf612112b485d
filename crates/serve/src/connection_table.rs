//! The open connections, and which of them make room for others.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::task::{AbortHandle, Id};

use crate::activity::{Activity, ConnectionClass};

/// Milliseconds after which a connection without a request makes room for a new
/// one. A client that has just connected may not have been read yet.
const IDLE_MILLISECONDS: u64 = 500;

/// The same for connections of the reserve. A busy machine may take as long
/// between the connection of a health check and its request.
const RESERVED_IDLE_MILLISECONDS: u64 = 1000;

/// How far a burst of connections may exceed the reserve, so that a health check
/// among them is read before it makes room.
const BURST: usize = 4;

/// The open connections.
pub(crate) struct ConnectionTable {
    max_regular: usize,
    max_reserved: usize,
    entries: HashMap<Id, Entry>,
}

struct Entry {
    class: ConnectionClass,
    activity: Arc<Activity>,
    task: AbortHandle,
}

impl ConnectionTable {
    pub(crate) fn new(max_regular: usize, max_reserved: usize) -> Self {
        Self { max_regular, max_reserved: max_reserved.max(1), entries: HashMap::new() }
    }

    /// Makes room for a connection: one that has no request is closed if
    /// necessary. If all have one, the new connection is for health checks, and
    /// replaces the oldest of those.
    pub(crate) fn make_room(&mut self) -> ConnectionClass {
        if self.count(ConnectionClass::Regular) < self.max_regular
            || self.close_idle(ConnectionClass::Regular, IDLE_MILLISECONDS)
        {
            return ConnectionClass::Regular;
        }
        let reserved = self.count(ConnectionClass::Reserved);
        if reserved >= self.max_reserved {
            let in_burst = reserved < self.max_reserved.saturating_mul(BURST);
            let at_least = if in_burst { RESERVED_IDLE_MILLISECONDS } else { 0 };
            self.close_idle(ConnectionClass::Reserved, at_least);
        }
        ConnectionClass::Reserved
    }

    pub(crate) fn insert(&mut self, task: AbortHandle, class: ConnectionClass, activity: Arc<Activity>) {
        self.entries.insert(task.id(), Entry { class, activity, task });
    }

    pub(crate) fn remove(&mut self, task: Id) {
        self.entries.remove(&task);
    }

    /// Closes the connection that has had no request for the longest time.
    pub(crate) fn close_idle(&mut self, class: ConnectionClass, at_least: u64) -> bool {
        let of_class = self.entries.iter().filter(|(_, entry)| entry.class == class);
        let idle = of_class.filter_map(|(task, entry)| Some((entry.activity.idle_for()?, *task)));
        let longest = idle.filter(|(idle, _)| *idle >= at_least).max_by_key(|(idle, _)| *idle);
        let Some(entry) = longest.and_then(|(_, task)| self.entries.remove(&task)) else { return false };
        entry.task.abort();
        true
    }

    fn count(&self, class: ConnectionClass) -> usize {
        self.entries.values().filter(|entry| entry.class == class).count()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use std::time::Duration;

    use tokio::task::JoinSet;

    use super::*;

    #[test]
    fn idle_connections_make_room_and_busy_ones_leave_the_reserve() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            let mut table = ConnectionTable::new(2, 1);
            let mut open = |table: &mut ConnectionTable, class| {
                let activity = Arc::new(Activity::new());
                table.insert(tasks.spawn(std::future::pending::<()>()), class, Arc::clone(&activity));
                activity
            };
            let first = open(&mut table, ConnectionClass::Regular);
            let second = open(&mut table, ConnectionClass::Regular);
            assert_eq!(table.make_room(), ConnectionClass::Reserved, "both have only just connected");
            open(&mut table, ConnectionClass::Reserved);
            tokio::time::sleep(Duration::from_millis(IDLE_MILLISECONDS + 50)).await;
            let request = first.begin();
            assert_eq!(table.make_room(), ConnectionClass::Regular, "the second makes room");
            assert_eq!(table.count(ConnectionClass::Regular), 1);
            let third = open(&mut table, ConnectionClass::Regular);
            let other = third.begin();
            assert_eq!(table.make_room(), ConnectionClass::Reserved);
            assert_eq!(table.count(ConnectionClass::Reserved), 1, "a burst may exceed the reserve");
            for _ in 1..BURST {
                open(&mut table, ConnectionClass::Reserved);
            }
            assert_eq!(table.make_room(), ConnectionClass::Reserved);
            assert_eq!(table.count(ConnectionClass::Reserved), BURST - 1, "the oldest makes room");
            drop((request, other, second));
        });
    }
}
