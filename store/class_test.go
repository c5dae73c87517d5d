package store_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestRequirementsAreReadInOneForm(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                "",
		"  ":                              "",
		"gpu":                             "gpu",
		"! gpu":                           "!gpu",
		"xcode >= 16":                     "xcode>=16",
		"xcode>=16, !gpu":                 "!gpu,xcode>=16",
		"!gpu,xcode>=16,!gpu":             "!gpu,xcode>=16",
		"pool in ( b, a,b )":              "pool in (a,b)",
		"pool in (a), os!=12":             "os!=12,pool in (a)",
		"example.com/cpu=c++":             "example.com/cpu=c++",
		"in in (in)":                      "in in (in)",
		"main":                            "main",
		"a<1,b<=2,c>3":                    "a<1,b<=2,c>3",
		strings.Repeat("a,", 200) + "a":   "a",
		"path=/Applications/Xcode-16.app": "path=/Applications/Xcode-16.app",
	} {
		r, err := store.ParseRequire("require", text)
		require.NoError(t, err, text)
		require.Equal(t, want, r.String(), text)
		require.Equal(t, r, store.StoredRequire(want))
	}
	for _, text := range []string{
		",", "a,", "a=", "=a", "a==b", "a!b", "!a=b", "a in", "a in b", "a in ()", "ain(b)", "a in (b", "a in b)", "a b", "a=b c", "a in (b,)", "ä", "a=ü",
		"a>=<1", "(a)", "a in (b) c", strings.Repeat("x", 64), "a=" + strings.Repeat("x", 64), strings.Repeat("a", 513), "!!a",
		"a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", "a in (1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17)",
	} {
		_, err := store.ParseRequire("prefer", text)
		require.Equal(t, store.InvalidArgument, store.CodeOf(err), text)
		require.ErrorContains(t, err, "prefer: ")
		require.False(t, store.StoredRequire(text).Match(store.Labels{text: text, "a": "b"}), "nobody satisfies what can't be read: %s", text)
	}
}

func TestLabelsSatisfyRequirements(t *testing.T) {
	t.Parallel()
	mac := store.Labels{"xcode": "16.10", "pool": "release", "os": "14", "build": "16A242d", "odd": "1..2"}
	for text, want := range map[string]bool{
		"":                              true,
		"xcode":                         true,
		"gpu":                           false,
		"!gpu":                          true,
		"!xcode":                        false,
		"xcode=16.10":                   true,
		"xcode=16.10.0":                 true,
		"xcode=016.10":                  true,
		"xcode=16.1":                    false,
		"xcode!=16.1":                   true,
		"xcode!=16.10":                  false,
		"xcode>16.9":                    true,
		"xcode>=16.10":                  true,
		"xcode>16.10":                   false,
		"xcode<=16.10":                  true,
		"xcode<16.11":                   true,
		"xcode<17":                      true,
		"xcode>=99999999999999999999.1": false,
		"xcode>=16,os>=14,!gpu":         true,
		"xcode>=16,os>=15":              false,
		"pool in (nightly,release)":     true,
		"pool in (nightly)":             false,
		"pool=Release":                  false,
		"os in (13.0,14.0)":             true,
		"gpu!=nvidia":                   true,
		"gpu=nvidia":                    false,
		"gpu in (nvidia)":               false,
		"gpu<1":                         false,
		"build>=16A":                    true,
		"build>16B":                     false,
		"odd=1..2":                      true,
		"odd>1":                         true,
	} {
		r, err := store.ParseRequire("require", text)
		require.NoError(t, err, text)
		require.Equal(t, want, r.Match(mac), text)
	}
	require.False(t, store.Require(store.StoredRequire("xcode")).Match(nil))
}

func TestWorkersWithoutPlatformsTakeTheTwoThatAlwaysExist(t *testing.T) {
	t.Parallel()
	gpu := store.StoredRequire("gpu")
	for _, c := range []struct {
		class     store.Class
		platforms []store.Platform
		labels    store.Labels
		want      bool
	}{
		{store.Class{Platform: "ios"}, nil, nil, true},
		{store.Class{Platform: "android"}, nil, nil, true},
		{store.Class{Platform: "linux"}, nil, nil, false},
		{store.Class{Platform: "linux"}, []store.Platform{"linux"}, nil, true},
		{store.Class{Platform: "ios"}, []store.Platform{"linux"}, nil, false},
		{store.Class{Platform: "ios", Require: gpu}, nil, nil, false},
		{store.Class{Platform: "ios", Require: gpu}, nil, store.Labels{"gpu": ""}, true},
		{store.Class{Platform: "ios", Require: gpu}, []store.Platform{"android"}, store.Labels{"gpu": ""}, false},
	} {
		require.Equal(t, c.want, c.class.TakenBy(c.platforms, c.labels), "%v %v", c.class.String(), c.platforms)
	}
	for _, c := range []store.Class{{ID: 1, Platform: "ios"}, {ID: 2, Platform: "android"}, {ID: 17, Platform: "linux"}, {ID: 300, Platform: "ios"}} {
		require.Equal(t, c, store.ClassOfEvent(c.Event()))
	}
	require.Equal(t, "ios", (&store.Class{ID: 1, Platform: "ios"}).Event(), "as the release before reads it")
}

func FuzzRequire(f *testing.F) {
	for _, seed := range []string{"xcode>=16, pool in (a,b), !gpu", "a", "a in (", "!", "a<=b", "in in (in)", ")(,", "a=1.0"} {
		f.Add(seed, "a", "1.0")
	}
	f.Fuzz(func(t *testing.T, text, name, value string) {
		r, err := store.ParseRequire("require", text)
		if err != nil {
			require.Equal(t, store.InvalidArgument, store.CodeOf(err))
			return
		}
		again, err := store.ParseRequire("require", r.String())
		require.NoError(t, err, "%q became %q", text, r)
		require.Equal(t, r, again)
		labels := store.Labels{name: value}
		require.Equal(t, r.Match(labels), again.Match(labels))
	})
}

func TestAKeyHasAShareOfTheClasses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key      string
		own, all int
		may      bool
	}{
		{"ci", 127, 127, true},
		{"ci", 128, 128, false},
		{"ci", 0, 254, true},
		{"ci", 0, 255, false},
		{"ci", 63, 191, true},
		{"ci", 64, 192, false},
		{"", 223, 223, true},
		{"", 224, 224, false},
		{"", 0, 255, true},
	} {
		require.Equal(t, c.may, store.ClassShare(c.key, c.own, c.all), c)
	}
}
