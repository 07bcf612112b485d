//! Everything that can be wrong with a schedule, once.

use weightloom_errors::Hint as _;
use weightloom_train::config::PipelineSchedule::{self, GPipe, Interleaved, OneForwardOneBackward};
use weightloom_train::pipeline::{Action, Message, Payload, ProgramError, Schedule, Wait, check};

fn schedule(kind: PipelineSchedule, ranks: usize, chunks: usize, micros: usize) -> Schedule {
    Schedule::new(kind, ranks, chunks, micros).unwrap()
}

fn message(payload: Payload, stage: usize, micro: usize) -> Message {
    Message { payload, stage, micro }
}

/// What is said and advised about a schedule.
fn told(schedule: &Schedule) -> (String, String) {
    let fault = check(schedule).unwrap_err();
    (fault.to_string(), fault.hint().unwrap())
}

fn place(schedule: &Schedule, rank: usize, action: Action) -> usize {
    schedule.ranks[rank].iter().position(|found| *found == action).unwrap()
}

#[test]
fn a_stage_that_there_is_not() {
    for action in [
        Action::Forward { stage: 2, micro: 0 },
        Action::Backward { stage: 0, micro: 1 },
        Action::Send { peer: 2, message: message(Payload::Activation, 0, 0) },
        Action::Receive { peer: 1, message: message(Payload::Gradient, usize::MAX, 0) },
    ] {
        let mut changed = schedule(GPipe, 2, 1, 1);
        let position = changed.ranks[0].len();
        changed.ranks[0].push(action);
        let found = check(&changed).unwrap_err();
        assert_eq!(
            found,
            ProgramError::Range { rank: 0, position, action, stages: 2, micro_batches: 1, ranks: 2 }
        );
        assert_eq!(found.hint().unwrap(), "count stages, micro-batches and ranks from 0");
    }
}

#[test]
fn a_stage_on_another_rank() {
    let mut changed = schedule(GPipe, 2, 1, 1);
    changed.ranks[0].insert(0, Action::Forward { stage: 1, micro: 0 });
    let said = "rank 0, action 0: forward of stage 1, micro-batch 0, but that stage lives on rank 1";
    assert_eq!(told(&changed), (said.to_owned(), "move it to rank 1".to_owned()));
}

#[test]
fn a_message_to_another_rank() {
    let mut changed = schedule(GPipe, 3, 1, 1);
    let sent = message(Payload::Activation, 0, 0);
    let at = place(&changed, 0, Action::Send { peer: 1, message: sent });
    changed.ranks[0][at] = Action::Send { peer: 2, message: sent };
    let said = "rank 0, action 1: sending the activation of stage 0, micro-batch 0 to rank 2, \
        but that goes from rank 0 to rank 1";
    let advised = "let rank 0 send it to rank 1, and rank 1 receive it";
    assert_eq!(told(&changed), (said.to_owned(), advised.to_owned()));
}

#[test]
fn a_message_that_nobody_needs() {
    let last = Action::Send { peer: 0, message: message(Payload::Activation, 1, 0) };
    let mut changed = schedule(GPipe, 2, 1, 1);
    changed.ranks[1].push(last);
    assert!(
        matches!(check(&changed), Err(ProgramError::Pointless { rank: 1, action, .. }) if action == last)
    );
    let first = Action::Receive { peer: 1, message: message(Payload::Gradient, 0, 0) };
    let mut changed = schedule(GPipe, 2, 1, 1);
    changed.ranks[0].push(first);
    assert!(
        matches!(check(&changed), Err(ProgramError::Pointless { rank: 0, action, .. }) if action == first)
    );
    let itself = Action::Send { peer: 0, message: message(Payload::Activation, 0, 0) };
    let mut changed = schedule(Interleaved, 1, 2, 1);
    changed.ranks[0].push(itself);
    let said = "rank 0, action 4: sending the activation of stage 0, micro-batch 0 to rank 0, \
        but no other rank needs that";
    let advised = "leave it out: stages of one rank hand over by themselves";
    assert_eq!(told(&changed), (said.to_owned(), advised.to_owned()));
}

#[test]
fn work_done_twice() {
    let mut changed = schedule(GPipe, 1, 1, 1);
    changed.ranks[0].push(Action::Forward { stage: 0, micro: 0 });
    let said = "rank 0 does the same twice, as its actions 0 and 2: forward of stage 0, micro-batch 0";
    assert_eq!(told(&changed), (said.to_owned(), "leave action 2 out".to_owned()));
}

#[test]
fn work_never_done() {
    let mut changed = schedule(GPipe, 2, 1, 2);
    let at = place(&changed, 1, Action::Backward { stage: 1, micro: 1 });
    changed.ranks[1].remove(at);
    let said = "rank 1 never does this: backward of stage 1, micro-batch 1";
    assert_eq!(told(&changed), (said.to_owned(), "add it to the program of rank 1".to_owned()));
}

#[test]
fn more_work_than_could_be_written_down() {
    let mut changed = schedule(GPipe, 2, 1, 2);
    changed.micro_batches = usize::MAX;
    changed.stages = usize::MAX - 1;
    let action = Action::Forward { stage: 0, micro: 2 };
    assert_eq!(check(&changed), Err(ProgramError::Missing { rank: 0, action }));
    let nothing = Schedule { ranks: Vec::new(), stages: 1, micro_batches: 1 };
    let action = Action::Forward { stage: 0, micro: 0 };
    assert_eq!(check(&nothing), Err(ProgramError::Missing { rank: 0, action }));
}

#[test]
fn a_message_that_is_never_received() {
    let mut changed = schedule(GPipe, 2, 1, 1);
    let at = place(&changed, 1, Action::Receive { peer: 0, message: message(Payload::Activation, 0, 0) });
    changed.ranks[1].remove(at);
    let said = "rank 0 sends the activation of stage 0, micro-batch 0 to rank 1, which never receives it";
    assert_eq!(told(&changed), (said.to_owned(), "let rank 1 receive it before it is needed".to_owned()));
}

#[test]
fn a_message_that_is_never_sent() {
    let mut changed = schedule(GPipe, 2, 1, 1);
    let at = place(&changed, 1, Action::Send { peer: 0, message: message(Payload::Gradient, 1, 0) });
    changed.ranks[1].remove(at);
    let said = "rank 0 waits for the gradient of stage 1, micro-batch 0 from rank 1, which never sends it";
    assert_eq!(told(&changed), (said.to_owned(), "let rank 1 send it once it is made".to_owned()));
}

#[test]
fn backward_before_forward_and_sending_before_making() {
    let mut changed = schedule(GPipe, 1, 1, 1);
    changed.ranks[0].swap(0, 1);
    let said = "rank 0, action 0: backward of stage 0, micro-batch 0, before its action 1, which that \
        needs: forward of stage 0, micro-batch 0";
    assert_eq!(told(&changed), (said.to_owned(), "move it after action 1".to_owned()));
    let mut changed = schedule(GPipe, 2, 1, 1);
    changed.ranks[0].swap(0, 1);
    let needs = Action::Forward { stage: 0, micro: 0 };
    assert!(
        matches!(check(&changed), Err(ProgramError::TooEarly { rank: 0, position: 0, needs: found, .. }) if found == needs)
    );
}

#[test]
fn work_without_what_it_needs() {
    let mut changed = schedule(GPipe, 2, 1, 1);
    let sent = message(Payload::Activation, 0, 0);
    let send = place(&changed, 0, Action::Send { peer: 1, message: sent });
    let receive = place(&changed, 1, Action::Receive { peer: 0, message: sent });
    changed.ranks[0].remove(send);
    changed.ranks[1].remove(receive);
    let said = "rank 1, action 0: forward of stage 1, micro-batch 0, without ever receiving the \
        activation of stage 0, micro-batch 0 from rank 0";
    assert_eq!(told(&changed), (said.to_owned(), "add what it needs in front of it".to_owned()));
}

#[test]
fn messages_in_another_order_than_sent() {
    let mut changed = schedule(GPipe, 2, 1, 2);
    let asks = |micro| Action::Receive { peer: 0, message: message(Payload::Activation, 0, micro) };
    // Both are received before anything is computed, the later one first.
    changed.ranks[1].retain(|action| *action != asks(0) && *action != asks(1));
    changed.ranks[1].splice(0..0, [asks(1), asks(0)]);
    let said = "rank 1 asks rank 0 for the activation of stage 0, micro-batch 1, \
        but the activation of stage 0, micro-batch 0 was sent before it";
    let advised = "send in the order in which messages are received";
    assert_eq!(told(&changed), (said.to_owned(), advised.to_owned()));
}

#[test]
fn ranks_that_wait_for_each_other() {
    // The first rank takes turns at once, the second one wants two first.
    let mut changed = schedule(OneForwardOneBackward, 3, 1, 2);
    let forward = |micro| {
        let message = message(Payload::Activation, 0, micro);
        [Action::Forward { stage: 0, micro }, Action::Send { peer: 1, message }]
    };
    let backward = |micro| {
        let message = message(Payload::Gradient, 1, micro);
        [Action::Receive { peer: 1, message }, Action::Backward { stage: 0, micro }]
    };
    changed.ranks[0] = [forward(0), backward(0), forward(1), backward(1)].concat();
    let cycle = vec![
        Wait { rank: 0, position: 2, peer: 1, message: message(Payload::Gradient, 1, 0) },
        Wait { rank: 1, position: 3, peer: 0, message: message(Payload::Activation, 0, 1) },
    ];
    assert_eq!(check(&changed), Err(ProgramError::Deadlock { cycle }));
    let said = "ranks wait for each other: rank 0 for the gradient of stage 1, micro-batch 0 from rank 1; \
        rank 1 for the activation of stage 0, micro-batch 1 from rank 0";
    let advised = "let rank 1 send the gradient of stage 1, micro-batch 0 before it waits itself, \
        or rank 0 wait for it later";
    assert_eq!(told(&changed), (said.to_owned(), advised.to_owned()));
}
