package postgres

import (
	"context"
	"errors"
	"maps"
	"math"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// pageArgs adds @skip and @limit to the arguments of a statement that reads a page. @limit
// is one row more than asked for, because that row shows that another page follows.
func pageArgs(p store.Page, args pgx.NamedArgs) pgx.NamedArgs {
	args["skip"], args["limit"] = p.Skip, nil
	if p.Limit > 0 {
		args["limit"] = p.Limit + 1
	}
	return args
}

// cut removes the additional row of pageArgs. If there was one, it returns the cursor after
// the page's last row.
func cut[T any](rows []T, p store.Page, at func(T) store.Cursor) ([]T, store.Cursor) {
	if p.Limit == 0 || len(rows) <= p.Limit {
		return rows, ""
	}
	return rows[:p.Limit], at(rows[p.Limit-1])
}

// pageOf reads a page with a statement that takes pageArgs. at returns the cursor after a
// row.
func pageOf[T any](
	ctx context.Context, o operation, by pgx.RowToFunc[T], at func(T) store.Cursor, sql string, p store.Page, args pgx.NamedArgs,
) ([]T, store.Cursor, error) {
	rows, err := rowsOf(ctx, o, by, sql, pageArgs(p, args))
	rows, next := cut(rows, p, at)
	return rows, next, err
}

// numberedList is a list ordered by one number. Its name is part of its cursors.
type numberedList struct {
	name string
	desc bool
}

// args returns the arguments @after and @until of a page. Without cursors they are the
// smallest and largest number, so that every page is a range of an index.
func (l numberedList) args(p store.Page) (pgx.NamedArgs, error) {
	after, until := int64(math.MinInt64), int64(math.MaxInt64)
	if l.desc {
		after, until = until, after
	}
	err := errors.Join(p.After.Keys(l.name, &after), p.Until.Keys(l.name, &until))
	return pgx.NamedArgs{"after": after, "until": until}, err
}

// numberedPage reads a page of a numbered list. number returns the number of a row.
func numberedPage[T any](
	ctx context.Context, o operation, l numberedList, number func(T) int64, sql string, p store.Page, more pgx.NamedArgs,
) ([]T, store.Cursor, error) {
	args, err := l.args(p)
	if err != nil {
		return nil, "", err
	}
	maps.Copy(args, more)
	return pageOf(ctx, o, pgx.RowToStructByPos[T], func(row T) store.Cursor { return l.at(number(row)) }, sql, p, args)
}

// at returns the cursor after the row with number n.
func (l numberedList) at(n int64) store.Cursor { return store.NewCursor(l.name, n) }
