//! The memory that a request needs.

/// Cache positions that are reserved at first; a longer cache grows by half.
const RESERVED_TOKENS: usize = 4096;

/// Bytes of a token in a complete response, and of each alternative to it, as
/// JSON values before they are written.
const TOKEN_BYTES: u64 = 256;
const ALTERNATIVE_BYTES: u64 = 768;

/// The parts of a request that take memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryNeed {
    /// Completions: prompts times `n`.
    pub(crate) rows: usize,
    /// Tokens of the longest prompt, and of all prompts together.
    pub(crate) longest: usize,
    pub(crate) prompt_tokens: usize,
    /// Alternatives that a complete response reports for each new token; `None`
    /// for a stream, which keeps nothing.
    pub(crate) reported: Option<usize>,
    /// Alternatives that are reported for each prompt token.
    pub(crate) prompt_reported: Option<usize>,
}

/// What the model takes for each token and row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelMemory {
    pub(crate) cache_bytes_per_token: usize,
    pub(crate) vocabulary: usize,
}

impl MemoryNeed {
    /// The bytes of keys, values, logits and results with this many new tokens.
    pub(crate) fn bytes(&self, new_tokens: usize, model: ModelMemory) -> u64 {
        let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let per_token = wide(model.cache_bytes_per_token);
        let mut positions = wide(self.longest).saturating_add(wide(new_tokens));
        if new_tokens > RESERVED_TOKENS {
            positions = positions.saturating_mul(3) / 2;
        }
        let rows = wide(self.rows);
        let cache = rows.saturating_mul(positions).saturating_mul(per_token);
        // The prompts of several rows are computed as one tree before.
        let tree = if self.rows > 1 { wide(self.prompt_tokens).saturating_mul(per_token) } else { 0 };
        let logits = rows.saturating_mul(wide(model.vocabulary)).saturating_mul(12);
        let reported = |tokens: u64, alternatives: Option<usize>| match alternatives {
            Some(count) => tokens
                .saturating_mul(TOKEN_BYTES.saturating_add(wide(count).saturating_mul(ALTERNATIVE_BYTES))),
            None => 0,
        };
        let results = reported(rows.saturating_mul(wide(new_tokens)), self.reported);
        let scores = reported(wide(self.prompt_tokens), self.prompt_reported);
        [cache, tree, logits, results, scores].into_iter().fold(0, u64::saturating_add)
    }

    /// The most new tokens that fit into some bytes, up to `most`; `None` if not
    /// even the prompts fit.
    pub(crate) fn affordable(&self, most: usize, bytes: u64, model: ModelMemory) -> Option<usize> {
        if self.bytes(0, model) > bytes {
            return None;
        }
        let (mut fits, mut above) = (0, most.saturating_add(1));
        while above - fits > 1 {
            let middle = fits + (above - fits) / 2;
            if self.bytes(middle, model) <= bytes { fits = middle } else { above = middle }
        }
        Some(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ModelMemory = ModelMemory { cache_bytes_per_token: 1000, vocabulary: 100 };

    fn need(rows: usize, tokens: usize) -> MemoryNeed {
        MemoryNeed {
            rows,
            longest: tokens,
            prompt_tokens: rows.saturating_mul(tokens),
            reported: None,
            prompt_reported: None,
        }
    }

    #[test]
    fn the_largest_number_of_tokens_that_fits_is_found() {
        for bytes in [0, 1, 1_000_000, 9_999_999, 50_000_000, u64::MAX] {
            for need in [need(1, 10), need(7, 300), MemoryNeed { reported: Some(20), ..need(3, 50) }] {
                match need.affordable(100_000, bytes, MODEL) {
                    None => assert!(need.bytes(0, MODEL) > bytes),
                    Some(count) => {
                        assert!(need.bytes(count, MODEL) <= bytes);
                        assert!(count == 100_000 || need.bytes(count + 1, MODEL) > bytes);
                    }
                }
            }
        }
        assert_eq!(need(usize::MAX, usize::MAX).affordable(usize::MAX, u64::MAX - 1, MODEL), None);
    }

    #[test]
    fn a_hundred_long_prompts_do_not_fit_where_one_does() {
        let gibibyte = 1 << 30;
        let model = ModelMemory { cache_bytes_per_token: 46_080, vocabulary: 49_152 };
        assert!(need(1, 8000).affordable(192, gibibyte, model) == Some(192));
        assert_eq!(need(100, 8000).affordable(192, gibibyte, model), None);
    }
}
