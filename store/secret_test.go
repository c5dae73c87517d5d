package store_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestSecretsAreChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		secret store.Secret
		value  string
		code   store.Code
		says   string
	}{
		"a good one":                {store.Secret{Name: "TOKEN", Keys: []string{"ci"}, Mask: true}, "hunter", "", ""},
		"of all keys":               {store.Secret{Name: "_T2", AllKeys: true, Mask: true}, strings.Repeat("x", 65536), "", ""},
		"short without a mask":      {store.Secret{Name: "PIN", AllKeys: true}, "1", "", ""},
		"of nobody":                 {store.Secret{Name: "TOKEN", Mask: true}, "hunter2", store.InvalidSecret, "belongs to some keys, or to all"},
		"of some and all":           {store.Secret{Name: "TOKEN", AllKeys: true, Keys: []string{"ci"}, Mask: true}, "hunter2", store.InvalidSecret, "belongs to some keys, or to all"},
		"of a key named twice":      {store.Secret{Name: "TOKEN", Keys: []string{"ci", "ci"}, Mask: true}, "hunter2", "", ""},
		"empty":                     {store.Secret{Name: "TOKEN", AllKeys: true}, "", store.InvalidSecret, "must not be empty"},
		"one letter":                {store.Secret{Name: "TOKEN", AllKeys: true, Mask: true}, "x", store.InvalidSecret, "less than 6 bytes"},
		"five bytes":                {store.Secret{Name: "TOKEN", AllKeys: true, Mask: true}, "abcde", store.InvalidSecret, "less than 6 bytes"},
		"too long":                  {store.Secret{Name: "TOKEN", AllKeys: true}, strings.Repeat("x", 65537), store.TooLarge, "at most 65536 bytes"},
		"a name in small letters":   {store.Secret{Name: "hunter2", AllKeys: true, Mask: true}, "hunter2", store.InvalidSecret, "The name of a secret"},
		"a name with a control":     {store.Secret{Name: "A\n", AllKeys: true, Mask: true}, "hunter2", store.InvalidSecret, "The name of a secret"},
		"a name that is too long":   {store.Secret{Name: strings.Repeat("A", 129), AllKeys: true, Mask: true}, "hunter2", store.InvalidSecret, "1 to 128"},
		"a name that is refused":    {store.Secret{Name: "LD_PRELOAD", AllKeys: true, Mask: true}, "hunter2", store.ReservedParam, "No build may set LD_PRELOAD"},
		"a name that begins with 1": {store.Secret{Name: "1A", AllKeys: true, Mask: true}, "hunter2", store.InvalidSecret, "The name of a secret"},
	} {
		err := c.secret.Check([]byte(c.value))
		require.Equal(t, c.code, store.CodeOf(err), "%s: %v", name, err)
		if err != nil {
			require.ErrorContains(t, err, c.says, name)
		}
	}
	s := store.Secret{Name: "A", AllKeys: true, Mask: true}
	require.NoError(t, s.Check([]byte("two\nlines")))
	require.False(t, s.Binary)
	require.NoError(t, s.Check([]byte("with\x00NUL")))
	require.True(t, s.Binary)
	require.NoError(t, s.Check([]byte("\xff\xfe\xfd\xfc\xfb\xfa")))
	require.True(t, s.Binary)
	many := store.Secret{Name: "A", Keys: make([]string, 101), Mask: true}
	for i := range many.Keys {
		many.Keys[i] = strings.Repeat("k", i+1)
	}
	require.ErrorContains(t, many.Check([]byte("hunter2")), "at most 100 keys, got 101")
}
