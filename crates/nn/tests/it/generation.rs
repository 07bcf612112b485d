//! Greedy and sampled generation.

use std::ops::ControlFlow;

use weightloom_nn::{AsModel, FinishReason, GenerateRequest, GeneratedSequence, Generation, Model, Sampling};

use crate::tiny::{decoder, logits};

fn prompts() -> Vec<Vec<u32>> {
    vec![vec![3, 1, 4], vec![1], vec![5, 9, 2, 6, 5]]
}

fn generate(request: &GenerateRequest) -> Vec<GeneratedSequence> {
    Generation::new(&decoder(), None, request.clone()).unwrap().run().unwrap()
}

#[test]
fn greedy_generation_takes_the_argmax_and_is_deterministic() {
    let request = GenerateRequest { prompts: prompts(), max_new_tokens: 8, ..GenerateRequest::default() };
    let rows = generate(&request);
    assert_eq!(rows, generate(&request));
    let decoder = decoder();
    for (row, prompt) in rows.iter().zip(prompts()) {
        assert_eq!((row.tokens.len(), row.finish), (8, FinishReason::Length));
        let mut tokens = prompt;
        for &token in &row.tokens {
            let all = logits(&decoder, &[&tokens], None);
            let last = &all[all.len() - 29..];
            let best = last.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(last[token as usize], best);
            tokens.push(token);
        }
    }
}

#[test]
fn stop_tokens_end_a_row_and_leave_the_others_alone() {
    let free = generate(&GenerateRequest { prompts: prompts(), max_new_tokens: 8, ..Default::default() });
    let stop = free[0].tokens[3];
    let request = GenerateRequest {
        stop_tokens: vec![stop],
        prompts: prompts(),
        max_new_tokens: 8,
        ..Default::default()
    };
    for (found, free) in generate(&request).iter().zip(&free) {
        let end = free.tokens.iter().position(|token| *token == stop);
        let expected = end.map_or(&free.tokens[..], |end| &free.tokens[..=end]);
        assert_eq!(found.tokens, expected);
        assert_eq!(found.finish, if end.is_some() { FinishReason::Stop } else { FinishReason::Length });
    }
}

#[test]
fn sampling_depends_on_the_seed_only() {
    let request = |seed| GenerateRequest {
        prompts: prompts(),
        max_new_tokens: 8,
        sampling: Sampling { temperature: 1.0, top_k: Some(20), seed, ..Sampling::default() },
        ..GenerateRequest::default()
    };
    assert_eq!(generate(&request(1)), generate(&request(1)));
    assert_ne!(generate(&request(1)), generate(&request(2)));
}

#[test]
fn a_row_with_its_own_seed_does_not_depend_on_its_batch() {
    let warm = |seed| Sampling { temperature: 1.0, top_p: Some(0.9), seed, ..Sampling::default() };
    let decoder = decoder();
    let run = |prompts: Vec<Vec<u32>>, sampling: Vec<Sampling>| {
        let request = GenerateRequest { prompts, max_new_tokens: 8, ..GenerateRequest::default() };
        let generation = Generation::new(&decoder, None, request).unwrap();
        generation.with_row_sampling(sampling).unwrap().run().unwrap()
    };
    let (one, other) = (vec![3, 1, 4], vec![1, 5]);
    let together = run(vec![other.clone(), one.clone(), one.clone()], vec![warm(1), warm(7), warm(8)]);
    assert_eq!(run(vec![one.clone()], vec![warm(7)]), together[1..2]);
    assert_eq!(
        run(vec![one.clone(), other], vec![warm(8), warm(1)]),
        [together[2].clone(), together[0].clone()]
    );
    assert_ne!(together[1], together[2]);
    // A greedy row among them.
    let mixed = run(vec![one.clone(), one.clone()], vec![Sampling::default(), warm(7)]);
    let greedy =
        generate(&GenerateRequest { prompts: vec![one.clone()], max_new_tokens: 8, ..Default::default() });
    assert_eq!((&mixed[0], &mixed[1]), (&greedy[0], &together[1]));
    let request = GenerateRequest { prompts: vec![one], max_new_tokens: 8, ..GenerateRequest::default() };
    let wrong = Sampling { temperature: -1.0, ..Sampling::default() };
    assert!(Generation::new(&decoder, None, request).unwrap().with_row_sampling([wrong]).is_err());
}

#[test]
fn reported_logprobs_agree_with_scores() {
    let request = GenerateRequest {
        prompts: vec![vec![3, 1, 4]],
        max_new_tokens: 5,
        top_logprobs: Some(2),
        ..Default::default()
    };
    let decoder = decoder();
    let mut generation = Generation::new(&decoder, None, request).unwrap();
    let (mut tokens, mut reported) = (vec![3, 1, 4], Vec::new());
    while !generation.is_done() {
        for token in generation.step().unwrap() {
            tokens.push(token.id);
            reported.push(token.logprobs.unwrap());
        }
    }
    let scores = decoder.as_model().score(&[&tokens], 2, None).unwrap().remove(0);
    for (reported, scored) in reported.iter().zip(&scores[2..]) {
        // The cache and one pass agree in every bit.
        assert_eq!(reported, scored);
        assert_eq!(reported.top[0].1, reported.chosen, "greedy takes the most likely token");
    }
}

#[test]
fn prompts_have_the_same_bits_in_chunks_of_any_size() {
    let decoder = decoder();
    // Shared prefixes, a prompt that begins another, and one that occurs twice.
    let long: Vec<u32> = (0..20).map(|at| at * 7 % 29).collect();
    let mut other = long[..12].to_vec();
    other.extend([3, 3, 8]);
    for prompts in [vec![long.clone()], vec![long.clone(), other, long[..6].to_vec(), vec![5], long.clone()]]
    {
        let request = GenerateRequest {
            prompts: prompts.clone(),
            max_new_tokens: 4,
            top_logprobs: Some(3),
            ..GenerateRequest::default()
        };
        let tokens = |chunk: usize| {
            let generation = Generation::new(&decoder, None, request.clone()).unwrap();
            let mut generation = generation.with_prefill_chunk(chunk);
            let mut tokens = Vec::new();
            while !generation.is_done() {
                tokens.extend(generation.step().unwrap());
            }
            tokens
        };
        let whole = tokens(usize::MAX);
        for chunk in [1, 2, 3, 5, 8, 19, 20, 21] {
            assert_eq!(tokens(chunk), whole, "chunks of {chunk}");
        }
    }
}

#[test]
fn a_prefill_that_is_given_up_ends_at_the_next_chunk() {
    let decoder = decoder();
    let request = GenerateRequest {
        prompts: vec![vec![1; 30], vec![2; 30]],
        max_new_tokens: 2,
        ..GenerateRequest::default()
    };
    let generation = Generation::new(&decoder, None, request.clone()).unwrap();
    let mut generation = generation.with_prefill_chunk(4);
    let mut checks = 0;
    let progress = generation.prefill(|| {
        checks += 1;
        if checks == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((progress, checks), (Ok(ControlFlow::Break(())), 3));
    // Nothing of it is left: the next prefill starts from the beginning.
    assert_eq!(generation.run().unwrap(), generate(&request));
    let rows: Vec<&[u32]> = request.prompts.iter().map(Vec::as_slice).collect();
    let given_up = decoder.score_checked(&rows, 1, None, &mut || ControlFlow::Break(()));
    assert_eq!(given_up, Ok(None));
}

#[test]
fn rows_are_scored_alike_alone_and_together() {
    let decoder = decoder();
    let rows: Vec<Vec<u32>> = vec![vec![1, 2, 3, 4, 5, 6], vec![1, 2, 3, 4, 5, 7, 8], vec![9], vec![4, 4]];
    let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
    let together = decoder.as_model().score(&rows, 3, None).unwrap();
    for (row, scores) in rows.iter().zip(&together) {
        assert_eq!(scores.len(), row.len() - 1);
        assert_eq!(*scores, decoder.as_model().score(&[row], 3, None).unwrap().remove(0));
    }
    assert_eq!(decoder.as_model().cache_bytes_per_token(), 2 * 2 * 2 * 4 * 4);
}
