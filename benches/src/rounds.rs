//! Rounds are interleaved, and what is reported is their median: a slow moment of the machine hits both sides.

use serde::Serialize;

use crate::latency::Percentiles;
use crate::work::{Cost, Measured};

/// A number that was measured once per round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle of the rounds.
    pub median: f64,
    /// The lowest round.
    pub min: f64,
    /// The highest round.
    pub max: f64,
}

impl Spread {
    /// Of one number per round; there is at least one round.
    pub fn of(rounds: impl IntoIterator<Item = f64>) -> Self {
        let mut rounds: Vec<f64> = rounds.into_iter().collect();
        rounds.sort_by(f64::total_cmp);
        let last = rounds.len() - 1;
        Self { median: f64::midpoint(rounds[last / 2], rounds[last.div_ceil(2)]), min: rounds[0], max: rounds[last] }
    }
}

/// One side over all rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Side {
    /// What was counted, per second: the middle of the rounds.
    pub per_s: f64,
    /// The slowest round.
    pub per_s_min: f64,
    /// The fastest round.
    pub per_s_max: f64,
    /// Of the calls: the middle of the rounds.
    #[serde(flatten)]
    pub calls: Percentiles,
    /// Of one that was counted: the middle of the rounds.
    #[serde(flatten)]
    pub cost: Option<Cost>,
}

impl Side {
    /// Of one measurement per round.
    pub fn of(rounds: &[Measured]) -> Self {
        let rate = Spread::of(rounds.iter().map(|round| round.per_s));
        let calls: Vec<Percentiles> = rounds.iter().map(|round| round.calls).collect();
        Self {
            per_s: rate.median,
            per_s_min: rate.min,
            per_s_max: rate.max,
            calls: median_percentiles(&calls),
            cost: median_cost(rounds),
        }
    }
}

/// The median of each percentile over the rounds.
pub fn median_percentiles(rounds: &[Percentiles]) -> Percentiles {
    Percentiles {
        p50_ms: Spread::of(rounds.iter().map(|round| round.p50_ms)).median,
        p99_ms: Spread::of(rounds.iter().map(|round| round.p99_ms)).median,
    }
}

fn median_cost(rounds: &[Measured]) -> Option<Cost> {
    let costs: Vec<Cost> = rounds.iter().filter_map(|round| round.cost).collect();
    (!costs.is_empty()).then(|| Cost {
        cpu_us: Spread::of(costs.iter().map(|cost| cost.cpu_us)).median,
        disk_bytes: Spread::of(costs.iter().map(|cost| cost.disk_bytes)).median,
    })
}

/// One ratio per round, of the rates of two sides that were measured right after one another.
pub fn rate_ratios(ours: &[Measured], theirs: &[Measured]) -> Spread {
    Spread::of(ours.iter().zip(theirs).map(|(ours, theirs)| ours.per_s / theirs.per_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_round() {
        assert_eq!(Spread::of([5.0, 1.0, 9.0]), Spread { median: 5.0, min: 1.0, max: 9.0 });
        assert_eq!(Spread::of([4.0, 2.0]), Spread { median: 3.0, min: 2.0, max: 4.0 });
        assert_eq!(Spread::of([4.0]), Spread { median: 4.0, min: 4.0, max: 4.0 });
    }

    #[test]
    fn a_ratio_compares_the_two_sides_of_one_round() {
        let side = |rates: [f64; 3]| rates.map(|per_s| Measured { per_s, calls: Percentiles::default(), cost: None });

        let ratios = rate_ratios(&side([1.0, 8.0, 3.0]), &side([2.0, 8.0, 4.0]));

        assert_eq!(ratios, Spread { median: 0.75, min: 0.5, max: 1.0 });
    }

    #[test]
    fn each_percentile_has_a_median_of_its_own() {
        let rounds = [(1.0, 30.0), (2.0, 10.0), (3.0, 20.0)].map(|(p50_ms, p99_ms)| Percentiles { p50_ms, p99_ms });

        assert_eq!(median_percentiles(&rounds), Percentiles { p50_ms: 2.0, p99_ms: 20.0 });
    }
}
