//! Simple linear regression by ordinary least squares.

/// `y = intercept + slope · x`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct LinearFit {
    pub intercept: f64,
    pub slope: f64,
}

impl LinearFit {
    /// Fits a line; `None` for fewer than two points or a constant `x`.
    pub fn least_squares(x: &[f64], y: &[f64]) -> Option<Self> {
        let count = x.len().min(y.len());
        if count < 2 {
            return None;
        }
        let mean_x = x.iter().sum::<f64>() / count as f64;
        let mean_y = y.iter().sum::<f64>() / count as f64;
        let variance: f64 = x.iter().map(|x| (x - mean_x) * (x - mean_x)).sum();
        if variance <= 0.0 {
            return None;
        }
        let covariance: f64 = x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
        let slope = covariance / variance;
        Some(Self { intercept: mean_y - slope * mean_x, slope })
    }

    /// Coefficient of determination, clamped to at least 0; 1 if `y` is
    /// constant.
    pub fn r_squared(&self, x: &[f64], y: &[f64]) -> f64 {
        let mean_y = y.iter().sum::<f64>() / y.len().max(1) as f64;
        let total: f64 = y.iter().map(|y| (y - mean_y) * (y - mean_y)).sum();
        if total <= 0.0 {
            return 1.0;
        }
        let residual: f64 = x
            .iter()
            .zip(y)
            .map(|(x, y)| y - (self.intercept + self.slope * x))
            .map(|residual| residual * residual)
            .sum();
        (1.0 - residual / total).max(0.0)
    }
}

/// Half-life of an exponential decay, from a linear fit of the logarithms.
/// `None` if a value is not positive, `x` is constant, or the values do not
/// decay.
pub fn half_life(x: &[f64], values: &[f64]) -> Option<f64> {
    if values.iter().any(|value| *value <= 0.0 || !value.is_finite()) {
        return None;
    }
    let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let line = LinearFit::least_squares(x, &logarithms)?;
    (line.slope < 0.0).then(|| std::f64::consts::LN_2 * (-1.0 / line.slope))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn matches_known_fits() {
        let found = half_life(&[0.0, 256.0, 512.0, 1024.0], &[0.4, 0.3, 0.25, 0.1]).unwrap();
        assert!((found - 513.9689590661417).abs() < 1e-9, "{found}");
        let x = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25];
        let y = [0.0, 0.01, 0.03, 0.06, 0.09, 0.1];
        let found = LinearFit::least_squares(&x, &y).unwrap().r_squared(&x, &y);
        assert!((found - 0.9754318618042227).abs() < 1e-12, "{found}");
    }

    #[test]
    fn degenerate_points_have_no_fit() {
        assert_eq!(LinearFit::least_squares(&[1.0], &[1.0]), None);
        assert_eq!(LinearFit::least_squares(&[1.0, 1.0], &[1.0, 2.0]), None);
        assert_eq!(half_life(&[0.0, 1.0], &[1.0, 2.0]), None);
        assert_eq!(half_life(&[0.0, 1.0], &[1.0, 0.0]), None);
        assert_eq!(half_life(&[0.0, 1.0], &[1.0, 1.0]), None);
        let flat = LinearFit::least_squares(&[0.0, 1.0], &[2.0, 2.0]).unwrap();
        assert_eq!(flat.r_squared(&[0.0, 1.0], &[2.0, 2.0]), 1.0);
    }

    proptest! {
        #[test]
        fn points_on_a_line_give_that_line(intercept in -10f64..10.0, slope in -10f64..10.0, count in 2usize..20) {
            let x: Vec<f64> = (0..count).map(|i| i as f64).collect();
            let y: Vec<f64> = x.iter().map(|x| intercept + slope * x).collect();
            let line = LinearFit::least_squares(&x, &y).unwrap();
            prop_assert!((line.intercept - intercept).abs() < 1e-9);
            prop_assert!((line.slope - slope).abs() < 1e-9);
        }
    }
}
