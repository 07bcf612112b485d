//! Temporary.
#![allow(missing_docs)]
#[derive(Clone, Copy, Debug)]
pub enum Message { Activation, Gradient }
#[derive(Clone, Copy, Debug)]
pub enum Action {
    Forward { stage: usize, micro: usize },
    Backward { stage: usize, micro: usize },
    Send { message: Message, stage: usize, micro: usize, to: usize },
    Receive { message: Message, stage: usize, micro: usize, from: usize },
}
#[derive(Clone, Debug)]
pub struct Schedule { pub ranks: Vec<Vec<Action>>, pub stage_count: usize }
impl Schedule {
    pub fn gpipe(pp: usize, micros: usize) -> Self {
        let mut ranks = vec![Vec::new(); pp];
        for (rank, program) in ranks.iter_mut().enumerate() {
            for micro in 0..micros {
                if rank > 0 { program.push(Action::Receive { message: Message::Activation, stage: rank, micro, from: rank - 1 }); }
                program.push(Action::Forward { stage: rank, micro });
                if rank + 1 < pp { program.push(Action::Send { message: Message::Activation, stage: rank, micro, to: rank + 1 }); }
            }
            for micro in 0..micros {
                if rank + 1 < pp { program.push(Action::Receive { message: Message::Gradient, stage: rank, micro, from: rank + 1 }); }
                program.push(Action::Backward { stage: rank, micro });
                if rank > 0 { program.push(Action::Send { message: Message::Gradient, stage: rank, micro, to: rank - 1 }); }
            }
        }
        Self { ranks, stage_count: pp }
    }
    pub fn stages(&self) -> usize { self.stage_count }
    pub fn program(&self, rank: usize) -> &[Action] { &self.ranks[rank] }
}
