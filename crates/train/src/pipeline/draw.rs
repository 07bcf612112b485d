//! A timeline as text, one line for each rank.
//!
//! `>` is forward, `<` backward, `.` idle. Where there is room, a micro-batch's
//! number is at its beginning, with a letter for the chunk if a rank has
//! several. A column in which several things happen shows what takes most of
//! it, or `=` where forward and backward take turns.

use super::timeline::Timeline;
use super::{Action, Schedule};

/// Draws a timeline of this schedule, in lines of at most `width` columns, or
/// of 40 if that is more.
pub fn draw(schedule: &Schedule, timeline: &Timeline, width: usize) -> String {
    let ranks = schedule.ranks.len().min(timeline.ranks.len());
    let digits = ranks.saturating_sub(1).to_string().len();
    let kept = timeline.peak_activations.iter().max().copied().unwrap_or(0).to_string().len();
    let tails: Vec<String> = (0..ranks)
        .map(|rank| {
            let (idle, peak) = (timeline.bubble(rank) * 100.0, timeline.peak_activations[rank]);
            format!("| {idle:3.0}% idle, {peak:kept$} kept\n")
        })
        .collect();
    let frame = "rank ".len() + digits + " |".len() + tails.first().map_or(0, |tail| tail.len() - 1);
    let columns = width.max(40).saturating_sub(frame).max(1);
    let scale = scale(schedule, timeline, columns);
    let mut text = String::new();
    for (rank, tail) in tails.iter().enumerate() {
        let line = line(schedule, timeline, rank, scale, columns);
        text.push_str(&format!("rank {rank:digits$} |{line}{tail}"));
    }
    text
}

/// How time becomes columns.
#[derive(Clone, Copy)]
struct Scale {
    /// Columns for a unit of time.
    columns: f64,
    labels: Labels,
}

/// Whether there is room for numbers. Where work has parts of columns, some
/// would have room and others not, by chance.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Labels {
    With,
    Without,
}

/// Columns for a unit of time. If the shortest computation has one, it has a
/// whole number of them, so that equal work looks equal.
fn scale(schedule: &Schedule, timeline: &Timeline, columns: usize) -> Scale {
    if timeline.makespan <= 0.0 {
        return Scale { columns: 0.0, labels: Labels::Without };
    }
    let computations = schedule.ranks.iter().zip(&timeline.ranks).flat_map(|(actions, spans)| {
        actions.iter().zip(spans).filter(|(action, _)| mark(action).is_some()).map(|(_, span)| span)
    });
    let lengths = computations.map(|span| span.end - span.start).filter(|length| *length > 0.0);
    let shortest = lengths.fold(timeline.makespan, f64::min);
    let most = columns as f64 / timeline.makespan;
    let whole = (most * shortest).floor();
    if whole >= 1.0 {
        Scale { columns: whole / shortest, labels: Labels::With }
    } else {
        Scale { columns: most, labels: Labels::Without }
    }
}

fn mark(action: &Action) -> Option<(char, usize, usize)> {
    match action {
        Action::Forward { stage, micro } => Some(('>', *stage, *micro)),
        Action::Backward { stage, micro } => Some(('<', *stage, *micro)),
        Action::Send { .. } | Action::Receive { .. } => None,
    }
}

fn line(schedule: &Schedule, timeline: &Timeline, rank: usize, scale: Scale, columns: usize) -> String {
    let Scale { columns: scale, labels: wanted } = scale;
    let used = ((timeline.makespan * scale).ceil() as usize).clamp(1, columns);
    let mut shares = vec![[0.0_f64; 2]; used];
    let mut labels: Vec<Option<char>> = vec![None; used];
    for (action, span) in schedule.ranks[rank].iter().zip(&timeline.ranks[rank]) {
        let Some((sign, stage, micro)) = mark(action) else { continue };
        let (start, end) = (span.start * scale, span.end * scale);
        let direction = usize::from(sign == '<');
        let (first, last) = (start as usize, (end.ceil() as usize).min(used));
        for (column, share) in shares.iter_mut().enumerate().take(last).skip(first) {
            share[direction] += end.min(column as f64 + 1.0) - start.max(column as f64);
        }
        let label = label(schedule, stage, micro);
        // One column of the sign itself must be left.
        let (first, last) = (start.round() as usize, (end.round() as usize).min(used));
        if wanted == Labels::With && first + label.len() < last {
            for (place, letter) in labels[first..].iter_mut().zip(label.chars()) {
                *place = Some(letter);
            }
        }
    }
    let shown = |(share, label): (&[f64; 2], &Option<char>)| {
        let [forward, backward] = *share;
        match label {
            Some(letter) => *letter,
            None if forward + backward < 0.5 => '.',
            None if wanted == Labels::Without && forward.min(backward) >= 0.2 => '=',
            None if forward >= backward => '>',
            None => '<',
        }
    };
    shares.iter().zip(&labels).map(shown).collect()
}

fn label(schedule: &Schedule, stage: usize, micro: usize) -> String {
    let ranks = schedule.ranks.len();
    if schedule.stages <= ranks {
        return micro.to_string();
    }
    // Chunks behind the last letter share it; by then there is no room anyway.
    let chunk = ('a'..='z').nth(stage / ranks).unwrap_or('z');
    format!("{micro}{chunk}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;
    use crate::config::PipelineSchedule;
    use crate::pipeline::{Costs, timeline};

    fn drawn(kind: PipelineSchedule, [ranks, chunks, micros]: [usize; 3], width: usize) -> String {
        let schedule = Schedule::new(kind, ranks, chunks, micros).unwrap();
        let costs = Costs::even(ranks * chunks, 1.0, 2.0, 0.0);
        let timeline = timeline(&schedule, &costs).unwrap();
        draw(&schedule, &timeline, width)
    }

    #[test]
    fn a_wide_line_shows_numbers() {
        let expected = "\
rank 0 |0>1>2>......0<<<1<<<2<<<|  25% idle, 3 kept
rank 1 |..0>1>2>0<<<1<<<2<<<....|  25% idle, 3 kept
";
        assert_eq!(drawn(PipelineSchedule::GPipe, [2, 1, 3], 60), expected);
        let expected = "\
rank 0 |0a>1a>0b>1b>......0b<<<<...1b<<<<0a<<<<1a<<<<|  20% idle, 4 kept
rank 1 |...0a>1a>0b>0b<<<<1b>1b<<<<0a<<<<1a<<<<......|  20% idle, 3 kept
";
        assert_eq!(drawn(PipelineSchedule::Interleaved, [2, 2, 2], 75), expected);
    }

    #[test]
    fn a_narrow_line_shows_what_takes_most_time() {
        let expected = "\
rank 0 |>>>>....<<<<<<<<<|  25% idle, 6 kept
rank 1 |.>>>>..<<<<<<<<<.|  25% idle, 6 kept
rank 2 |.>>>>=<<<<<<<<...|  25% idle, 6 kept
";
        assert_eq!(drawn(PipelineSchedule::GPipe, [3, 1, 6], 44), expected);
    }

    #[test]
    fn a_timeline_of_another_schedule_is_drawn_as_far_as_it_goes() {
        let small = Schedule::new(PipelineSchedule::GPipe, 2, 1, 2).unwrap();
        let large = Schedule::new(PipelineSchedule::GPipe, 3, 1, 4).unwrap();
        let of_small = timeline(&small, &Costs::even(2, 1.0, 2.0, 0.0)).unwrap();
        let of_large = timeline(&large, &Costs::even(3, 1.0, 2.0, 0.0)).unwrap();
        assert_eq!(draw(&large, &of_small, 80).lines().count(), 2);
        assert_eq!(draw(&small, &of_large, 80).lines().count(), 2);
        assert_eq!(of_small.bubble(7), 1.0);
    }

    #[test]
    fn lines_are_as_wide_as_there_is_room() {
        for width in [0, 40, 57, 80, 200, 1000] {
            for sizes in [[1, 1, 1], [4, 1, 8], [12, 1, 100], [4, 3, 8]] {
                let text = drawn(PipelineSchedule::Interleaved, sizes, width);
                assert_eq!(text.lines().count(), sizes[0]);
                let lengths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
                assert!(lengths.iter().all(|length| *length == lengths[0]), "{text}");
                assert!(lengths[0] <= width.max(40), "{width}: {text}");
            }
        }
    }

    #[test]
    fn no_work_takes_no_time_and_is_drawn_all_the_same() {
        let schedule = Schedule::new(PipelineSchedule::GPipe, 2, 1, 2).unwrap();
        let timeline = timeline(&schedule, &Costs::even(2, 0.0, 0.0, 0.0)).unwrap();
        assert_eq!(
            draw(&schedule, &timeline, 80),
            "rank 0 |.|   0% idle, 2 kept\nrank 1 |.|   0% idle, 2 kept\n"
        );
    }
}
