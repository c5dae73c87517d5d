package store

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What many groups take and lack is counted as for one.
func TestAFleetCountsWhatEachGroupTakesAndLacks(t *testing.T) {
	t.Parallel()
	name, value := rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SampledFrom([]string{"1", "1.0", "2", "x"})
	condition := rapid.Custom(func(t *rapid.T) condition {
		return condition{name.Draw(t, "name"), rapid.SampledFrom([]string{"", "!", "=", "!=", "<", "<=", ">", ">=", "in", "?"}).Draw(t, "op"), []string{value.Draw(t, "value")}}
	})
	group := rapid.Custom(func(t *rapid.T) FleetGroup {
		return FleetGroup{
			Platforms: rapid.SampledFrom([][]Platform{nil, {"linux"}}).Draw(t, "platforms"),
			Labels:    rapid.MapOf(name, value).Draw(t, "labels"),
			N:         rapid.IntRange(1, 3).Draw(t, "n"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		groups := rapid.SliceOfN(group, 1, 5).Draw(t, "groups")
		c := Class{ID: 9, Platform: rapid.SampledFrom([]Platform{IOS, "linux"}).Draw(t, "platform"), Require: rapid.SliceOfN(condition, 0, 4).Draw(t, "require")}
		f, taken, counted := NewFleet(groups), 0, FleetSummary{Class: c}
		for i, n := range f.lacking(&c) {
			lacks, _ := c.lacks(&groups[i])
			require.Len(t, lacks, n, "%v for %v", groups[i], c)
			require.Equal(t, n == 0, groups[i].Takes(&c))
			if n == 0 {
				taken += groups[i].N
			}
		}
		f.Count(&counted)
		require.Equal(t, taken, counted.Known, "%v for %v", groups, c)
		for range 2 { // the second is from memory
			require.Equal(t, taken == 0 && len(c.Require) > 0, f.Unmatched(&c))
		}
		require.False(t, NewFleet(nil).Unmatched(&c), "there is no worker at all")
		c.ID = 0
		require.Equal(t, taken == 0 && len(c.Require) > 0, f.Unmatched(&c), "0 is not all classes here")
	})
}
