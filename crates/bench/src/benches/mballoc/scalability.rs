//! The universal scalability law (USL, N. Gunther), fitted to rates at several numbers of threads:
//! X(N) = λN / (1 + σ(N-1) + κN(N-1)).
//!
//! λ is the rate of one thread, σ the contention (serial share of the work), κ the coherence cost.
//! N/X(N) is linear in 1/λ, σ/λ and κ/λ, so least squares have a closed form, weighted for small
//! relative errors of X. Coefficients are not negative: of all fits with some of them 0, the best
//! one with positive others is taken.

/// Coefficients of the law.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scalability {
    /// Rate of one thread.
    pub(super) lambda: f64,
    /// Contention.
    pub(super) sigma: f64,
    /// Coherence.
    pub(super) kappa: f64,
}

impl Scalability {
    /// Fits pairs of thread count and positive rate; `None` without any pair.
    pub(super) fn fit(points: &[(f64, f64)]) -> Option<Self> {
        let choices = [&[0, 1, 2][..], &[0, 1], &[0, 2], &[0]];
        let fits = choices.into_iter().filter_map(|terms| {
            let mut coefficients = [0.0; 3];
            for (term, value) in terms.iter().zip(least_squares(points, terms)?) {
                coefficients[*term] = value;
            }
            let [inverse, contention, coherence] = coefficients;
            let valid = inverse > 0.0 && contention >= 0.0 && coherence >= 0.0;
            valid.then_some(Self {
                lambda: 1.0 / inverse,
                sigma: contention / inverse,
                kappa: coherence / inverse,
            })
        });
        fits.min_by(|a, b| a.squares(points).total_cmp(&b.squares(points)))
    }

    /// The rate predicted by the law.
    pub(super) fn rate(&self, threads: f64) -> f64 {
        let more = threads - 1.0;
        self.lambda * threads / (1.0 + self.sigma * more + self.kappa * threads * more)
    }

    /// The greatest relative difference between the law and the points.
    pub(super) fn worst_error(&self, points: &[(f64, f64)]) -> f64 {
        let errors = points
            .iter()
            .map(|(threads, rate)| (self.rate(*threads) / rate - 1.0).abs());
        errors.fold(0.0, f64::max)
    }

    fn squares(&self, points: &[(f64, f64)]) -> f64 {
        let errors = points
            .iter()
            .map(|(threads, rate)| (rate / self.rate(*threads) - 1.0).powi(2));
        errors.sum()
    }
}

/// The terms that N/X(N) is a sum of.
fn terms_of(threads: f64) -> [f64; 3] {
    [1.0, threads - 1.0, threads * (threads - 1.0)]
}

/// Coefficients of these terms, by the normal equations; `None` when the points do not settle them.
fn least_squares(points: &[(f64, f64)], terms: &[usize]) -> Option<Vec<f64>> {
    let size = terms.len();
    let mut rows = vec![vec![0.0; size + 1]; size];
    for &(threads, rate) in points {
        let target = threads / rate;
        let all = terms_of(threads);
        // Relative errors: each equation is divided by its right side.
        let scaled: Vec<_> = terms.iter().map(|term| all[*term] / target).collect();
        for (row, left) in rows.iter_mut().zip(&scaled) {
            for (cell, right) in row.iter_mut().zip(scaled.iter().chain([&1.0])) {
                *cell += left * right;
            }
        }
    }
    solve(rows)
}

/// Gauss elimination; each row is an equation with its right side last.
fn solve(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let size = rows.len();
    for column in 0..size {
        let greatest = |&a: &usize, &b: &usize| {
            let size_of = |row: usize| -> f64 { rows[row][column] };
            size_of(a).abs().total_cmp(&size_of(b).abs())
        };
        let pivot = (column..size).max_by(greatest)?;
        rows.swap(column, pivot);
        let (done, rest) = rows.split_at_mut(column + 1);
        let row = &done[column];
        // The remainder of a linearly dependent column is a rounding error.
        if row[column].abs() <= f64::EPSILON * row.iter().fold(0.0, |a: f64, b| a.max(b.abs())) {
            return None;
        }
        for other in rest {
            let factor = other[column] / row[column];
            for (cell, above) in other.iter_mut().zip(row) {
                *cell -= factor * above;
            }
        }
    }
    let mut solution = vec![0.0; size];
    for at in (0..size).rev() {
        let known: f64 = (at + 1..size).map(|k| rows[at][k] * solution[k]).sum();
        solution[at] = (rows[at][size] - known) / rows[at][at];
    }
    Some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

    fn near(found: f64, wanted: f64) -> bool {
        (found - wanted).abs() <= 1e-6 * wanted.abs().max(1.0)
    }

    #[test]
    fn coefficients_that_made_the_points_are_found_again() {
        let law = Scalability {
            lambda: 12e6,
            sigma: 0.03,
            kappa: 0.0004,
        };
        let points = THREADS.map(|threads| (threads, law.rate(threads)));
        let found = Scalability::fit(&points).unwrap();
        assert!(near(found.lambda / 12e6, 1.0), "{found:?}");
        assert!(near(found.sigma, 0.03) && near(found.kappa, 0.0004));
        assert!(found.worst_error(&points) < 1e-6);
    }

    #[test]
    fn linear_scaling_has_neither_contention_nor_coherence() {
        let points = THREADS.map(|threads| (threads, 5.0 * threads));
        let found = Scalability::fit(&points).unwrap();
        assert!(near(found.lambda, 5.0), "{found:?}");
        assert!(near(found.sigma, 0.0) && near(found.kappa, 0.0));
    }

    #[test]
    fn scaling_better_than_linear_is_fitted_without_negative_coefficients() {
        let points = THREADS.map(|threads| (threads, threads * threads.sqrt()));
        let found = Scalability::fit(&points).unwrap();
        assert!(found.sigma >= 0.0 && found.kappa >= 0.0, "{found:?}");
        assert!(found.worst_error(&points) > 0.1);
    }

    #[test]
    fn points_of_one_number_of_threads_settle_the_rate_alone() {
        let found = Scalability::fit(&[(1.0, 7.0), (1.0, 7.0)]).unwrap();
        assert!(near(found.lambda, 7.0), "{found:?}");
        assert!(Scalability::fit(&[]).is_none());
    }
}
