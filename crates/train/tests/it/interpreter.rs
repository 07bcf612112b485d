//! Executes pipeline schedules on integers. Ranks have separate memories and
//! communicate only through queues. Shares no code with the checker.

use std::collections::{BTreeMap, HashMap, VecDeque};

use weightloom_train::pipeline::{Action, Message, Payload, Schedule};

/// Messages in transit, with their values.
type Queues = HashMap<(usize, usize, Payload), VecDeque<(Message, u64)>>;

/// Values that a rank has computed or received and not consumed yet.
#[derive(Default)]
struct Memory {
    /// Activations by receiving stage.
    inputs: HashMap<(usize, usize), u64>,
    /// Gradients by receiving stage.
    gradients: HashMap<(usize, usize), u64>,
    /// Activations stored for the backward pass.
    kept: HashMap<(usize, usize), u64>,
    outbox: HashMap<Message, u64>,
}

/// Whether all ranks finish, and every stage runs every micro-batch once in each
/// direction, with the values of a single rank.
pub fn execute(schedule: &Schedule) -> bool {
    let ranks = schedule.ranks.len();
    let mut memories: Vec<Memory> = (0..ranks).map(|_| Memory::default()).collect();
    let (mut at, mut queues) = (vec![0; ranks], Queues::new());
    let mut results = BTreeMap::new();
    for micro in 0..schedule.micro_batches {
        memories[0].inputs.insert((0, micro), micro as u64 + 1);
    }
    loop {
        let before = at.clone();
        for rank in 0..ranks {
            while let Some(action) = schedule.ranks[rank].get(at[rank]) {
                match act(schedule, rank, *action, &mut memories[rank], &mut queues, &mut results) {
                    Outcome::Done => at[rank] += 1,
                    Outcome::Waits => break,
                    Outcome::Impossible => return false,
                }
            }
        }
        if at == before {
            break;
        }
    }
    let ended = at.iter().zip(&schedule.ranks).all(|(at, program)| *at == program.len());
    ended && queues.values().all(VecDeque::is_empty) && results == expected(schedule)
}

enum Outcome {
    Done,
    Waits,
    Impossible,
}

type Results = BTreeMap<(usize, usize), u64>;

fn forward(stage: usize, input: u64) -> u64 {
    input.wrapping_mul(6364136223846793005).wrapping_add(stage as u64)
}

fn backward(stage: usize, kept: u64, gradient: u64) -> u64 {
    gradient.wrapping_mul(1442695040888963407).wrapping_add(kept ^ stage as u64)
}

fn act(
    schedule: &Schedule,
    rank: usize,
    action: Action,
    memory: &mut Memory,
    queues: &mut Queues,
    results: &mut Results,
) -> Outcome {
    let (ranks, last) = (schedule.ranks.len(), schedule.stages - 1);
    match action {
        Action::Forward { stage, micro } => {
            let Some(input) = memory.inputs.remove(&(stage, micro)) else { return Outcome::Impossible };
            let output = forward(stage, input);
            memory.kept.insert((stage, micro), output);
            if stage == last {
                memory.gradients.insert((stage, micro), output);
            } else if (stage + 1) % ranks == rank {
                memory.inputs.insert((stage + 1, micro), output);
            } else {
                memory.outbox.insert(Message { payload: Payload::Activation, stage, micro }, output);
            }
            Outcome::Done
        }
        Action::Backward { stage, micro } => {
            let Some(kept) = memory.kept.remove(&(stage, micro)) else { return Outcome::Impossible };
            let Some(gradient) = memory.gradients.remove(&(stage, micro)) else { return Outcome::Impossible };
            let made = backward(stage, kept, gradient);
            results.insert((stage, micro), made);
            if stage == 0 {
                return Outcome::Done;
            }
            if (stage - 1) % ranks == rank {
                memory.gradients.insert((stage - 1, micro), made);
            } else {
                memory.outbox.insert(Message { payload: Payload::Gradient, stage, micro }, made);
            }
            Outcome::Done
        }
        Action::Send { peer, message } => {
            let Some(value) = memory.outbox.remove(&message) else { return Outcome::Impossible };
            queues.entry((rank, peer, message.payload)).or_default().push_back((message, value));
            Outcome::Done
        }
        Action::Receive { peer, message } => {
            let queue = queues.entry((peer, rank, message.payload)).or_default();
            let Some((found, value)) = queue.pop_front() else { return Outcome::Waits };
            if found != message {
                return Outcome::Impossible;
            }
            match message.payload {
                Payload::Activation => memory.inputs.insert((message.stage + 1, message.micro), value),
                Payload::Gradient => memory.gradients.insert((message.stage - 1, message.micro), value),
            };
            Outcome::Done
        }
    }
}

/// The results of every backward pass on a single rank.
fn expected(schedule: &Schedule) -> Results {
    let mut results = Results::new();
    for micro in 0..schedule.micro_batches {
        let mut kept = Vec::new();
        let mut value = micro as u64 + 1;
        for stage in 0..schedule.stages {
            value = forward(stage, value);
            kept.push(value);
        }
        for stage in (0..schedule.stages).rev() {
            value = backward(stage, kept[stage], value);
            results.insert((stage, micro), value);
        }
    }
    results
}
