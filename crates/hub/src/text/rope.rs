//! The rule behind a table of rotary factors.
//!
//! Llama 3.1 and later stretch low frequencies and leave high ones as they
//! are. A config says how by four numbers; a GGUF file has the resulting
//! factor of each frequency, `rope_freqs.weight`. The numbers are found again
//! by trying those that models use.

use serde_json::{Value, json};

use super::error::TextError;

/// Wavelengths longer than the original context over `LOW` are stretched, and
/// those shorter than it over `HIGH` are not. No model has others.
const LOW: f64 = 1.0;
const HIGH: f64 = 4.0;

/// Contexts that models were first trained with.
const ORIGINAL: [u64; 5] = [8192, 4096, 2048, 16384, 32768];

/// Factors are `f32`, made from `f32`.
const TOLERANCE: f64 = 1e-4;

/// The scaling that a config states for these factors; none if all are one.
pub(super) fn scaling(factors: &[f32], theta: f64) -> Result<Option<Value>, TextError> {
    let factors: Vec<f64> = factors.iter().map(|&factor| factor.into()).collect();
    let Some(&factor) = factors.last() else { return Err(TextError::RopeFactors) };
    if factors.iter().all(|&factor| factor == 1.0) {
        return Ok(None);
    }
    let fits = |&original: &u64| {
        factors.iter().enumerate().all(|(at, &found)| {
            let exponent = at as f64 / factors.len() as f64;
            let wavelength = std::f64::consts::TAU * theta.powf(exponent);
            (found - expected(wavelength, factor, original as f64)).abs() <= TOLERANCE * found.abs()
        })
    };
    let original = ORIGINAL.iter().find(|original| fits(original)).ok_or(TextError::RopeFactors)?;
    Ok(Some(json!({
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LOW,
        "high_freq_factor": HIGH,
        "original_max_position_embeddings": original,
    })))
}

/// The factor of one frequency.
fn expected(wavelength: f64, factor: f64, original: f64) -> f64 {
    if wavelength < original / HIGH {
        1.0
    } else if wavelength > original / LOW {
        factor
    } else {
        let smooth = (original / wavelength - LOW) / (HIGH - LOW);
        1.0 / ((1.0 - smooth) / factor + smooth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_llama_3_are_found_again() {
        for (factor, original) in [(8.0, 8192), (32.0, 8192), (8.0, 4096)] {
            let theta = 500_000_f64;
            let factors: Vec<f32> = (0..64)
                .map(|at| {
                    let wavelength = std::f64::consts::TAU * theta.powf(f64::from(at) / 64.0);
                    expected(wavelength, factor, f64::from(original)) as f32
                })
                .collect();
            let found = scaling(&factors, theta).unwrap().unwrap();
            assert_eq!((&found["factor"], &found["rope_type"]), (&json!(factor), &json!("llama3")));
            assert_eq!(found["original_max_position_embeddings"], json!(original));
            assert_eq!(scaling(&factors, 10_000.0), Err(TextError::RopeFactors));
        }
    }

    #[test]
    fn factors_of_one_scale_nothing() {
        assert_eq!(scaling(&[1.0; 8], 10_000.0), Ok(None));
        assert_eq!(scaling(&[], 10_000.0), Err(TextError::RopeFactors));
        assert_eq!(scaling(&[f32::NAN; 4], 10_000.0), Err(TextError::RopeFactors));
    }
}
