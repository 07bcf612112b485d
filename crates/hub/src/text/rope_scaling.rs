//! RoPE scaling of Llama 3 from a table of factors.
//!
//! Llama 3.1 and later stretch low frequencies and keep high ones. A config
//! describes that by four numbers; a GGUF file has the resulting factor of each
//! frequency in `rope_freqs.weight`. The numbers are recovered by trying those
//! of published models.

use serde_json::{Value, json};

use super::error::TextError;

/// Wavelengths above the original context over `LOW` are stretched, those below
/// it over `HIGH` are not. No published model uses other values.
const LOW: f64 = 1.0;
const HIGH: f64 = 4.0;

/// Original context lengths of published models.
const ORIGINAL: [u64; 5] = [8192, 4096, 2048, 16384, 32768];

/// The factors are `f32` computed in `f32`.
const TOLERANCE: f64 = 1e-4;

/// The `rope_scaling` of a config for these factors; `None` if all are one.
pub(super) fn rope_scaling_config(factors: &[f32], theta: f64) -> Result<Option<Value>, TextError> {
    let factors: Vec<f64> = factors.iter().map(|&factor| factor.into()).collect();
    let Some(&factor) = factors.last() else { return Err(TextError::RopeFactors) };
    if factors.iter().all(|&factor| factor == 1.0) {
        return Ok(None);
    }
    let fits = |&original: &u64| {
        factors.iter().enumerate().all(|(index, &found)| {
            let exponent = index as f64 / factors.len() as f64;
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

/// The factor of one wavelength.
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
    fn the_numbers_of_llama_3_are_recovered() {
        for (factor, original) in [(8.0, 8192), (32.0, 8192), (8.0, 4096)] {
            let theta = 500_000_f64;
            let factors: Vec<f32> = (0..64)
                .map(|at| {
                    let wavelength = std::f64::consts::TAU * theta.powf(f64::from(at) / 64.0);
                    expected(wavelength, factor, f64::from(original)) as f32
                })
                .collect();
            let found = rope_scaling_config(&factors, theta).unwrap().unwrap();
            assert_eq!((&found["factor"], &found["rope_type"]), (&json!(factor), &json!("llama3")));
            assert_eq!(found["original_max_position_embeddings"], json!(original));
            assert_eq!(rope_scaling_config(&factors, 10_000.0), Err(TextError::RopeFactors));
        }
    }

    #[test]
    fn factors_of_one_scale_nothing() {
        assert_eq!(rope_scaling_config(&[1.0; 8], 10_000.0), Ok(None));
        assert_eq!(rope_scaling_config(&[], 10_000.0), Err(TextError::RopeFactors));
        assert_eq!(rope_scaling_config(&[f32::NAN; 4], 10_000.0), Err(TextError::RopeFactors));
    }
}
