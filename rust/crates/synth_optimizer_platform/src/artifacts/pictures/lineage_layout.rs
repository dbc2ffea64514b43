//! Places the candidates of a lineage: columns by generation from left to right, and rows packed like the branches of a
//! version history.

use super::lineage_data::Selection;

/// The column and row of each shown candidate.
#[derive(Debug)]
pub(super) struct Grid {
    pub(super) cells: Vec<(usize, usize)>,
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// Assigns columns and rows. A candidate is right of all of its parents. Its first branch, which leads to the best
/// candidate if one does, continues in its row; the others begin in the first free row below.
pub(super) fn arrange(selection: &Selection) -> Grid {
    let count = selection.shown.len();
    let mut columns = vec![0usize; count];
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut roots = Vec::new();
    for index in 0..count {
        let parents = &selection.parents[index];
        columns[index] = parents.iter().map(|(parent, _)| columns[*parent] + 1).max().unwrap_or(0);
        match parents.first() {
            Some((parent, _)) => children[*parent].push(index),
            None => roots.push(index),
        }
    }
    // The length of the longest branch below each candidate; children come after their parents.
    let mut reach = columns.clone();
    for index in (0..count).rev() {
        if let Some((parent, _)) = selection.parents[index].first() {
            reach[*parent] = reach[*parent].max(reach[index]);
        }
    }
    for list in &mut children {
        list.sort_by(|a, b| {
            selection.on_path[*b].cmp(&selection.on_path[*a]).then(reach[*b].cmp(&reach[*a])).then(a.cmp(b))
        });
    }
    let mut taken: Vec<Vec<(usize, usize)>> = Vec::new();
    let mut rows = vec![0usize; count];
    let mut waiting: Vec<(usize, usize, usize)> = roots.iter().rev().map(|root| (*root, 0, columns[*root])).collect();
    while let Some((start, lowest, from)) = waiting.pop() {
        // The branch: the candidate, its first child, the first child of that one, and so on.
        let branch: Vec<usize> =
            std::iter::successors(Some(start), |index| children[*index].first().copied()).collect();
        let to = branch.last().map_or(from, |index| columns[*index]);
        let row = free_row(&mut taken, lowest, (from, to));
        for index in &branch {
            rows[*index] = row;
        }
        // Later branches go first, so that earlier ones end up below them and edges do not cross.
        for index in &branch {
            let others = children[*index].iter().skip(1).rev();
            waiting.extend(others.map(|child| (*child, row + 1, columns[*index] + 1)));
        }
    }
    Grid {
        columns: columns.iter().max().map_or(0, |last| last + 1),
        rows: rows.iter().max().map_or(0, |last| last + 1),
        cells: columns.into_iter().zip(rows).collect(),
    }
}

/// Returns the first row from `lowest` on that is free between these columns, and takes it.
fn free_row(taken: &mut Vec<Vec<(usize, usize)>>, lowest: usize, (from, to): (usize, usize)) -> usize {
    let mut row = lowest;
    loop {
        if taken.len() <= row {
            taken.resize(row + 1, Vec::new());
        }
        if taken[row].iter().all(|(first, last)| to < *first || *last < from) {
            taken[row].push((from, to));
            return row;
        }
        row += 1;
    }
}
