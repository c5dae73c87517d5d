package store_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestParseLabels(t *testing.T) {
	t.Parallel()
	t.Run("takes a JSON object of strings", func(t *testing.T) {
		t.Parallel()
		l, err := store.ParseLabels(` {"cache":"app/main","who":"Ä 雪"} `)
		require.NoError(t, err)
		require.Equal(t, store.Labels{"cache": "app/main", "who": "Ä 雪"}, l)
		require.Equal(t, "app/main", l.Cache())
	})
	t.Run("takes nothing for no labels", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{"", " ", "null"} {
			l, err := store.ParseLabels(text)
			require.NoError(t, err)
			require.Empty(t, l)
		}
	})
	t.Run("takes as much as its limits allow and no more", func(t *testing.T) {
		t.Parallel()
		full := map[string]string{}
		for i := range store.MaxLabels {
			full[fmt.Sprint("n", i)] = strings.Repeat("v", store.MaxLabelValue)
		}
		text, err := json.Marshal(full)
		require.NoError(t, err)
		l, err := store.ParseLabels(string(text))
		require.NoError(t, err)
		require.Len(t, l, store.MaxLabels)
		require.Error(t, l.Set("one-more", ""))
		require.NoError(t, l.Set("n0", "another"))
		require.NoError(t, store.Labels{}.Set(strings.Repeat("n", store.MaxLabelName), ""))
	})
	t.Run("refuses everything else", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{
			"[]", "1", `"a"`, "{", `{"a"`, `{"a":`, `{"a":1}`, `{"a":null}`, `{"a":{}}`, `{"a":["b"]}`, `{"a":"b"}{}`, `{"a":"b"} x`,
			`{"a":"b","a":"c"}`, `{"":"b"}`, `{"a b":"c"}`, `{"ä":"c"}`, `{"a":"line\nbreak"}`, `{"a":"\u0000"}`,
			`{"` + strings.Repeat("n", 64) + `":""}`, `{"a":"` + strings.Repeat("v", 256) + `"}`,
		} {
			_, err := store.ParseLabels(text)
			require.Equal(t, store.InvalidArgument, store.CodeOf(err), text)
		}
	})
}

func FuzzParseLabels(f *testing.F) {
	for _, text := range []string{`{}`, `{"cache":"a","b":"c"}`, `{"a":"b","a":"c"}`, `{"a":"\ud800"}`, `{"a":1e9}`, `null`, `[{}]`, `{"a":"b"}x`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := store.ParseLabels(text)
		if err != nil {
			require.Equal(t, store.InvalidArgument, store.CodeOf(err))
			return
		}
		require.LessOrEqual(t, len(l), store.MaxLabels)
		for name, value := range l {
			require.True(t, store.ValidID(strings.NewReplacer(".", "_", "/", "_").Replace(name)), name)
			require.LessOrEqual(t, len(value), store.MaxLabelValue)
			require.NotContains(t, value, "\x00")
		}
		text2, err := json.Marshal(l)
		require.NoError(t, err)
		again, err := store.ParseLabels(string(text2))
		require.NoError(t, err)
		require.Len(t, again, len(l))
	})
}
