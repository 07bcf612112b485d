//! Statistics, compared with those in a report of dlm-sway 0.1.0.
//!
//! The report is of a tiny model with random weights; it lists the number of
//! every unit and the statistics of each probe.

use weightloom_sway::numbers::bootstrap::mean_interval;
use weightloom_sway::numbers::linear_fit::{LinearFit, half_life};
use weightloom_sway::numbers::logistic::logistic_score;
use weightloom_sway::numbers::mean;
use weightloom_sway::probe::KindNull;

fn near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() <= wanted.abs() * 1e-12, "{found} is not {wanted}");
}

#[test]
fn means_and_intervals_agree() {
    let distances = [0.13769379847816457, 0.08940487357701114, 0.019709111383232447];
    assert_eq!(mean(&distances), Some(0.08226926114613604));
    assert_eq!(mean_interval(&distances, 0), Some([0.019709111383232447, 0.13769379847816457]));
    let distances = [0.30318864990027183, 0.5782029674300674];
    assert_eq!(mean(&distances), Some(0.4406958086651696));
}

#[test]
fn intervals_of_sections_agree() {
    let gains = [
        -0.021655240775071912,
        -0.021805605679514856,
        -0.015322698737954568,
        0.06149923658581566,
        -0.0027156913932743195,
    ];
    assert_eq!(mean(&gains), Some(5.204170427930421e-19));
    assert_eq!(mean_interval(&gains, 0), Some([-0.020448878329425622, 0.031995282536931555]));
}

#[test]
fn half_lives_and_fits_agree() {
    let means = [0.10315760022871631, 0.023293520021570452, 0.027319675106793638];
    near(half_life(&[0.0, 32.0, 64.0], &means).unwrap_or(f64::NAN), 33.38832172408702);
    let lambdas = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25];
    let curve = [
        0.0,
        0.002023902696856743,
        0.008710050851484482,
        0.020832376103694226,
        0.03855372616868456,
        0.06125184282126189,
    ];
    let line = LinearFit::least_squares(&lambdas, &curve);
    near(line.map_or(f64::NAN, |line| line.r_squared(&lambdas, &curve)), 0.9098869046909708);
}

#[test]
fn z_scores_and_scores_agree() {
    for (samples, raw, sign, z, score) in [
        (
            [0.0003951312475796165, 0.0019045653565186171, -0.0005192632292787547],
            0.017392304696223437,
            1.0,
            16.80867818101534,
            0.9963263631058347,
        ),
        (
            [-0.022308349609375, 0.046009063720703125, 0.103851318359375],
            0.008724212646484375,
            1.0,
            -0.6553677769816193,
            0.44560218225975984,
        ),
        (
            [0.4111396534182151, 0.08309844314865986, 0.26398508810624405],
            -0.8526035256946255,
            1.0,
            -8.239121360526743,
            0.06029177206512629,
        ),
        (
            [0.02937598397023043, 0.019500500930299126, 0.03395747381783561],
            0.007575757575757576,
            -1.0,
            3.3212712690522914,
            0.7515862785182661,
        ),
    ] {
        let found = KindNull::of(&samples).and_then(|null| null.z_score(raw)).map_or(f64::NAN, |z| sign * z);
        near(found, z);
        near(logistic_score(found), score);
    }
}
