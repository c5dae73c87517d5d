package runner

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/storetest/needs"
)

func TestBuildThatFillsTheDisk(t *testing.T) {
	t.Parallel()
	b, id := building(t, `head -c 3000000 /dev/zero > big; echo full; exec sleep 1000`, func(c *Config) { c.Resources.Disk = 2 << 20 })
	require.Equal(t, "build exceeded its disk limit of 2.0 MiB", b.AwaitState(t, id, store.Failed).ErrorMessage)
}

func TestBuildThatFillsTheDiskWithADeletedFile(t *testing.T) {
	t.Parallel()
	needs.Linux(t)
	b, id := building(t, `cd "$TMPDIR"; exec 3> big; rm big; head -c 3000000 /dev/zero >&3; exec sleep 1000`, func(c *Config) { c.Resources.Disk = 2 << 20 })
	require.Equal(t, "build exceeded its disk limit of 2.0 MiB", b.AwaitState(t, id, store.Failed).ErrorMessage)
}

// Long links take a block each, and few bytes of the archive.
func TestSourceThatFillsTheDisk(t *testing.T) {
	t.Parallel()
	links := func(n int) (raw []byte) {
		all := make([]entry, n)
		for i := range all {
			all[i] = entry{name: strconv.Itoa(i), content: strings.Repeat("x", 4000), mode: fs.ModeSymlink | 0o777}
		}
		return archive(t, all...)
	}
	file := func(n int) []byte { return archive(t, entry{name: "file", content: strings.Repeat("x", n)}) }
	for name, tt := range map[string]struct {
		source, certs []byte
		want          string
	}{
		"a source of links":                {source: links(300), want: "archive unpacks to more than 1048576 bytes"},
		"source and certificates together": {source: links(100), certs: file(700_000), want: "build exceeded its disk limit of 1.0 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			marker := filepath.Join(t.TempDir(), "ran")
			b := newBench(t, `touch `+marker+`; touch "$TAKT_OUTPUT"`, func(c *Config) { c.Resources.Disk = 1 << 20 })
			id := b.Submit("ios", tt.source, tt.certs)
			b.start(t)
			require.Contains(t, b.AwaitState(t, id, store.Failed).ErrorMessage, tt.want)
			require.NoFileExists(t, marker)
		})
	}
}

func TestUsageCountsAsTheDiskDoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	require.NoError(t, os.Truncate(file, 1<<30)) // a hole
	before := usage(t.Context(), dir)
	require.GreaterOrEqual(t, before, int64(1<<20))
	require.Less(t, before, int64(2<<20))
	require.NoError(t, os.Link(file, filepath.Join(dir, "again")))
	require.Equal(t, before, usage(t.Context(), dir))
}

// TestLimitsThatAreNotHeld has an engine that can limit CPU only.
func TestLimitsThatAreNotHeld(t *testing.T) {
	t.Parallel()
	engine := filepath.Join(t.TempDir(), "podman")
	require.NoError(t, os.WriteFile(engine, []byte("#!/bin/sh\n[ $# != 3 ] || echo '[cpu pids]'\n"), 0o700))
	image := &Image{Engine: engine, HostEnv: []string{"PATH=/bin:/usr/bin"}}
	require.NoError(t, image.Limit(t.Context(), Resources{CPUs: 1}))
	b := newBench(t, "", func(c *Config) { c.Command, c.Resources.Memory = image, 1<<30 })
	id := b.Submit("ios", source(t), nil)
	b.start(t)
	b.Await(t, "the build says so", b.has(id, "[takt] not all limits hold here: podman has no memory controller"))
}
