package postgres

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// classes are the classes of work of which this controller knows that builds may be
// pending: those that were counted lately, and those of builds that it has added. Safe for
// concurrent use; the zero value knows those of ios and android.
type classes struct {
	mu    sync.Mutex
	seen  map[int32]seenClass
	taken []store.Class // those of seen and the two of ios and android, by number; immutable
	// numbers are those of classes by platform and requirement, which never change.
	numbers map[string]int32
}

type seenClass struct {
	store.Class
	at time.Time
}

const (
	// classAge is how long a class is claimed from after builds of it were last seen pending.
	classAge = time.Minute
	// maxNumbers bounds classes.numbers.
	maxNumbers = 4096
)

// note records classes of which builds are pending, and forgets others that have not been
// noted lately.
func (c *classes) note(now time.Time, found ...store.Class) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := len(c.seen)
	for _, one := range found {
		if one.ID == 0 || store.PlainClass(one.Platform) == one.ID {
			continue
		}
		if c.seen == nil {
			c.seen = map[int32]seenClass{}
		}
		if old, ok := c.seen[one.ID]; ok {
			one = old.Class
		} else {
			known = -1
		}
		c.seen[one.ID] = seenClass{one, now}
	}
	maps.DeleteFunc(c.seen, func(_ int32, s seenClass) bool { return now.Sub(s.at) > classAge })
	if c.taken == nil || len(c.seen) != known {
		c.taken = []store.Class{{ID: store.IOSClass, Platform: store.IOS}, {ID: store.AndroidClass, Platform: store.Android}}
		for _, s := range c.seen {
			c.taken = append(c.taken, s.Class)
		}
		slices.SortFunc(c.taken, func(a, b store.Class) int { return cmp.Compare(a.ID, b.ID) })
	}
}

// all returns the classes that may have pending builds, by number.
func (c *classes) all() []store.Class {
	c.mu.Lock()
	taken := c.taken
	c.mu.Unlock()
	if taken == nil {
		c.note(time.Time{})
		return c.all()
	}
	return taken
}

// classSet is a set of classes: those that a worker can take.
type classSet struct {
	key string // the numbers
	ids []int32
}

// setOf returns those of all that a worker can take.
func setOf(all []store.Class, s *store.WorkerSession) (set classSet) {
	key := make([]byte, 0, 16)
	for i := range all {
		if s.Takes(&all[i]) {
			set.ids = append(set.ids, all[i].ID)
			key = append(strconv.AppendInt(key, int64(all[i].ID), 10), ' ')
		}
	}
	set.key = string(key)
	return set
}

const sqlFindClass = `/* find_class */
WITH k AS (
	SELECT id FROM build_classes WHERE platform = $1 AND require = $2
), n AS (
	INSERT INTO build_classes (platform, require) SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM k)
	ON CONFLICT (platform, require) DO UPDATE SET platform = excluded.platform RETURNING id
)
SELECT id FROM k UNION ALL SELECT id FROM n`

// classOf returns the class of builds with a requirement, with its number. A new class
// stays, even if no build is added.
func (db *DB) classOf(ctx context.Context, p store.Platform, require store.Require) (class store.Class, err error) {
	class = store.Class{Platform: p, Require: require}
	if len(require) == 0 && store.PlainClass(p) > 0 {
		class.ID = store.PlainClass(p)
		return class, nil
	}
	c, key := &db.classes, string(p)+" "+require.String()
	c.mu.Lock()
	class.ID = c.numbers[key]
	c.mu.Unlock()
	if class.ID > 0 {
		return class, nil
	}
	if class.ID, err = valueOf[int32](ctx, db.write("finding a class"), sqlFindClass, string(p), require.String()); err != nil {
		return class, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.numbers == nil || len(c.numbers) >= maxNumbers {
		c.numbers = map[string]int32{}
	}
	c.numbers[key] = class.ID
	return class, nil
}

// pendingClasses finds the classes that have pending builds, one look-up for each.
const pendingClasses = `RECURSIVE c AS (
	(SELECT class FROM builds WHERE state = 'pending' AND class > 0 ORDER BY class LIMIT 1)
	UNION ALL
	SELECT (SELECT b.class FROM builds b WHERE b.state = 'pending' AND b.class > 0 AND b.class > c.class ORDER BY b.class LIMIT 1) FROM c WHERE c.class IS NOT NULL
)`

const (
	// classesKey is the advisory lock under which classes get their first pending build.
	classesKey = 0x74616b74_636c6173 // "taktclas"

	sqlNewClasses   = `/* new_classes */ SELECT c FROM unnest($1::int[]) c WHERE NOT EXISTS (SELECT FROM builds WHERE state = 'pending' AND class > 0 AND class = c)`
	sqlCountClasses = `/* count_classes */ WITH ` + pendingClasses + ` SELECT count(class) FROM (SELECT class FROM c LIMIT $1) c`
)

// limitClasses refuses additions by which more than store.MaxClasses classes would have
// pending builds. It counts only if a class has none yet.
func limitClasses(ctx context.Context, tx pgx.Tx, all []*addition) error {
	var labelled []int32
	for _, a := range all {
		if c := a.class; c.ID != store.PlainClass(c.Platform) && !slices.Contains(labelled, c.ID) {
			labelled = append(labelled, c.ID)
		}
	}
	if labelled == nil {
		return nil
	}
	fresh, err := collect(ctx, tx, pgx.RowTo[int32], sqlNewClasses, labelled)
	if err != nil || len(fresh) == 0 {
		return err
	}
	if _, err := tx.Exec(ctx, sqlHoldLimit, int64(classesKey)); err != nil {
		return err
	}
	var have int
	if err := tx.QueryRow(ctx, sqlCountClasses, store.MaxClasses+1).Scan(&have); err != nil {
		return err
	}
	room := max(store.MaxClasses-have, 0)
	for _, a := range all {
		if i := slices.Index(fresh, a.class.ID); i >= room {
			a.err = store.NewError(store.Unprocessable, "Builds of "+strconv.Itoa(store.MaxClasses)+
				" different platforms and requirements wait already: use requirements that more builds share, or wait")
		}
	}
	return nil
}

// maxSets is how many sets of classes one transaction claims for. Polls of workers that
// take further sets are served by the next.
const maxSets = 16

// claimSQL returns the statement that locks the first builds of as many sets: those of one
// class come first, so that the others leave them what only they can take. A scan starts at
// its low-water mark. It reads one class by builds_by_class and several by builds_in_order, in
// their order. The conditions are written such that the planner can use no other index,
// because it may plan while nothing is pending.
func claimSQL(single, several int) string {
	var sql, union strings.Builder
	sql.WriteString("/* claim_builds */\nWITH ")
	for i := range single + several {
		order, taken := "position, seq", ""
		where := fmt.Sprintf("class + 0 = ANY ($%d) AND position >= $%d", 3*i+2, 3*i+3)
		if i < single {
			order = "class, position, seq"
			where = fmt.Sprintf("class > 0 AND (class, position) >= ($%[1]d, $%[2]d) AND class <= $%[1]d", 3*i+2, 3*i+3)
		}
		for j := range i {
			taken += " AND seq <> ALL (ARRAY(SELECT seq FROM s" + strconv.Itoa(j) + "))"
		}
		separator := ""
		if i > 0 {
			separator = ", "
			union.WriteString(" UNION ALL ")
		}
		fmt.Fprintf(&sql, "%ss%d AS MATERIALIZED (\n\t%s%s AND seq <> ALL ($1::bigint[])%s ORDER BY %s LIMIT $%d%s\n)",
			separator, i, pending, where, taken, order, 3*i+4, forUs)
		fmt.Fprintf(&union, "SELECT %d, * FROM s%d", i, i)
	}
	return sql.String() + "\n" + union.String()
}

// claim is what a transaction claims for the workers that take one set of classes.
type claim struct {
	classSet
	wanted int
	builds []lockedBuild // in their order
	// whole is true if no other builds are pending for these workers. first is the position of
	// the first build, 0 if there is none.
	whole bool
	first int64
}

// plan returns what to claim for turns, by what is remembered of their workers.
func plan(all []store.Class, turns []*turn) []*claim {
	var claims []*claim
	last := (*turn)(nil)
	for _, t := range turns {
		if t.takes = (classSet{}); !t.Session.Free() {
			continue
		}
		if last == nil || !t.alike(last) {
			t.takes = setOf(all, &t.Session)
		} else {
			t.takes = last.takes
		}
		last = t
		i := slices.IndexFunc(claims, func(c *claim) bool { return c.key == t.takes.key })
		switch {
		case len(t.takes.ids) == 0:
		case i >= 0:
			claims[i].wanted++
		default:
			claims = append(claims, &claim{classSet: t.takes, wanted: 1})
		}
	}
	slices.SortStableFunc(claims, func(a, b *claim) int { return len(a.ids) - len(b.ids) })
	return claims[:min(len(claims), maxSets)]
}

// alike reports whether the workers of both polls can take the same builds.
func (t *turn) alike(o *turn) bool {
	return slices.Equal(t.Session.Platforms, o.Session.Platforms) && maps.Equal(t.Session.Labels, o.Session.Labels)
}

// statement returns the statement that claims, and its arguments.
func statement(claims []*claim, p pass, skip []int64) (sql string, args []any) {
	single := 0
	args = []any{skip}
	for _, c := range claims {
		if len(c.ids) == 1 {
			single++
			args = append(args, c.ids[0], p.from(c.ids), c.wanted)
		} else {
			args = append(args, c.ids, p.from(c.ids), c.wanted)
		}
	}
	if key := [2]int{single, len(claims) - single}; key != oneSet {
		return claimSQL(key[0], key[1]), args
	}
	return claimOneSet, args
}

// The statement for a fleet whose workers all take the same classes, which is the usual.
var (
	oneSet      = [2]int{0, 1}                   //nolint:gochecknoglobals // a constant
	claimOneSet = claimSQL(oneSet[0], oneSet[1]) //nolint:gochecknoglobals // as well
)
