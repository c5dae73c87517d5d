package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/storage/inventory"
	"takt/storage/s3test"
	"takt/store"
)

// filesOf lists what a controller has on its disk, temporary files included.
func filesOf(t *testing.T, c *process.Controller) []string {
	t.Helper()
	names := []string{}
	dir := filepath.Join(c.DataDir, "files")
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err == nil && d.Type().IsRegular() {
			name, _ := filepath.Rel(dir, path)
			names = append(names, name)
		}
		return err
	}))
	return names
}

// ofBuilds counts the objects of builds; workers' diagnostic reports are there too.
func ofBuilds(objects []string) (n int) {
	for _, name := range objects {
		if strings.Contains(name, "/builds/") {
			n++
		}
	}
	return n
}

func TestWholeJobWithS3(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"s3", "dual"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s, server := newSite(t), s3test.Start(t)
			server.Kill() // S3 that is away is no reason not to start
			c := s.controller("takt", append(server.Env(), "TAKT_STORAGE="+mode, "TAKT_S3_PREFIX=our/files")...)
			s.worker(c, "one", copyOrder)
			eventually(t, "health shows it", func() bool {
				h, err := client.Call(t.Context(), c.Client, api.ShowHealth, api.None{})
				s3, known := h.Storage["s3"].(map[string]any)
				return err == nil && known && s3["ok"] == false
			})
			var owed string
			if mode == "dual" {
				owed = submit(t, c, zipOf(t, map[string]string{"order.txt": "in a storm"}))
				eventually(t, "it is built all the same", func() bool { return status(t, c, owed).Status == string(store.Completed) })
			}
			server.Restart()
			id := submit(t, c, zipOf(t, map[string]string{"order.txt": mode + " please"}))
			eventually(t, "build completes", func() bool { return status(t, c, id).Status == string(store.Completed) })
			require.Equal(t, mode+" please", download(t, c, id))
			if mode == "s3" {
				eventually(t, "nothing is left on the disk", func() bool { return len(filesOf(t, c)) == 0 }) // of the worker's report
				require.Equal(t, 2, ofBuilds(server.Objects()))
				return
			}
			eventually(t, "S3 has got what it was owed", func() bool { return ofBuilds(server.Objects()) == 4 })
			copies := "takt_storage_copies_owed"
			eventually(t, "nothing is owed", func() bool {
				n, err := c.Metric(t.Context(), copies)
				return err == nil && n == 0
			})
			require.NoError(t, os.RemoveAll(filepath.Join(c.DataDir, "files", "builds")))
			require.Equal(t, "in a storm", download(t, c, owed), "S3 is enough")
		})
	}
}

// A bucket that is full, and one whose answers are damaged on their way.
func TestFaultyS3(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"s3", "dual"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s, server := newSite(t), s3test.Start(t)
			proxy := server.Proxy()
			c := s.controller("takt", append(proxy.Env(server), "TAKT_STORAGE="+mode, "TAKT_S3_PREFIX=our/files")...)
			s.worker(c, "one", copyOrder)
			proxy.Set(s3test.Refuse(http.StatusInsufficientStorage, "QuotaExceeded"))
			source := zipOf(t, map[string]string{"order.txt": mode})
			if mode == "s3" {
				begun := time.Now()
				_, err := c.Client.Submit(t.Context(), client.Submit{Platform: store.IOS, Source: client.Bytes(source)})
				require.Equal(t, 503, client.StatusOf(err), "%v", err)
				require.Positive(t, client.RetryAfter(err))
				require.Less(t, time.Since(begun), 20*time.Second)
				proxy.Set(nil)
			}
			id := submit(t, c, source)
			eventually(t, "it is built", func() bool { return status(t, c, id).Status == string(store.Completed) })
			if mode == "dual" {
				require.Zero(t, ofBuilds(server.Objects()))
				proxy.Set(nil)
				eventually(t, "S3 catches up", func() bool { return ofBuilds(server.Objects()) == 2 })
				require.Eventually(t, func() bool { // the row names the object soon after
					n, err := c.Metric(t.Context(), "takt_storage_copies_owed")
					return err == nil && n == 0
				}, patience, 20*time.Millisecond)
				require.NoError(t, os.RemoveAll(filepath.Join(c.DataDir, "files", "builds")))
			}
			require.Equal(t, mode, download(t, c, id))
			for name, fault := range map[string]func([]byte, int64) error{"garbled": s3test.Garble(1), "cut": s3test.Cut(0)} {
				proxy.Set(s3test.Edit(false, fault))
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL+"/api/builds/"+id+"/download", nil)
				require.NoError(t, err)
				req.Header.Set("X-Api-Key", c.APIKey)
				resp, err := http.DefaultClient.Do(req) // which checks no digest
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					require.NoError(t, resp.Body.Close())
				}
				require.Error(t, err, name)
			}
			require.Contains(t, c.Output(), "has another digest", "operators learn of it")
			proxy.Set(nil)
			require.Equal(t, mode, download(t, c, id))
		})
	}
}

// upkeep runs a storage command on the data of c, and returns its exit status,
// findings and summary.
func (s *site) upkeep(c *process.Controller, settings []string, args ...string) (code int, found []inventory.Finding, sum inventory.Migrated) {
	s.t.Helper()
	p := s.launchUpkeep(c, settings, args...)
	<-p.Done()
	for line := range strings.Lines(p.Output()) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var m struct {
			inventory.Finding
			Summary *inventory.Migrated
			Title   string // of the error at the end
		}
		require.NoError(s.t, json.Unmarshal([]byte(line), &m), line)
		if m.Summary != nil {
			sum = *m.Summary
		} else if m.Title == "" {
			found = append(found, m.Finding)
		}
	}
	if p.Failure() == nil {
		return 0, found, sum
	}
	s.t.Log(p.Tail())
	return p.ExitCode(), found, sum
}

func (s *site) launchUpkeep(c *process.Controller, settings []string, args ...string) *process.Process {
	s.t.Helper()
	p, err := s.Launch(strings.Join(args, ""), append(settings, "TAKT_DATA_DIR="+c.DataDir),
		append(append([]string{"storage"}, args...), "--json")...)
	require.NoError(s.t, err)
	return p
}

func TestStorageCommandsWithAndWithoutARunningController(t *testing.T) {
	t.Parallel()
	s, server := newSite(t), s3test.Start(t)
	c := s.controller("takt")
	var ids []string
	for i := range 6 {
		ids = append(ids, submit(t, c, zipOf(t, map[string]string{"order.txt": fmt.Sprint("order ", i)})))
	}
	code, found, _ := s.upkeep(c, nil, "verify", "--digest")
	require.Zero(t, code)
	require.Empty(t, found)
	code, _, _ = s.upkeep(c, nil, "migrate", "--to", "s3")
	require.Equal(t, 2, code, "no S3 is configured")

	// Killed as soon as something has been copied, and run again.
	victim := s.launchUpkeep(c, server.Env(), "migrate", "--to", "s3", "--prune")
	eventually(t, "it has begun", func() bool { return len(server.Objects()) > 0 || !victim.Alive() })
	victim.Kill()
	code, _, sum := s.upkeep(c, server.Env(), "migrate", "--to", "s3", "--prune")
	require.Zero(t, code)
	require.EqualValues(t, 6, sum.Files)
	require.LessOrEqual(t, len(filesOf(t, c)), 1, "what the killed one had taken out of its row, at worst")
	require.NoError(t, c.Stop(context.WithoutCancel(t.Context()), patience))

	// Stopped: the commands run the database themselves. One kept object is spoilt.
	code, found, _ = s.upkeep(c, server.Env(), "verify", "--digest")
	require.Zero(t, code)
	for _, f := range found {
		require.Equal(t, inventory.Unnamed, f.Problem, "of the killed one, at worst")
	}
	code, _, sum = s.upkeep(c, server.Env(), "migrate", "--to", "local")
	require.Zero(t, code)
	require.EqualValues(t, 6, sum.Copied)
	require.NoError(t, os.WriteFile(filepath.Join(c.DataDir, "files", "builds", ids[2], "source.zip"), []byte("spoilt"), 0o600))
	code, found, _ = s.upkeep(c, server.Env(), "verify")
	require.Equal(t, 1, code)
	require.Len(t, found, 1)
	require.Equal(t, inventory.Damaged, found[0].Problem)
	require.Equal(t, ids[2], found[0].Build)

	again := s.controller("takt", append(server.Env(), "TAKT_STORAGE=s3")...)
	s.worker(again, "one", copyOrder)
	for i, id := range ids {
		eventually(t, "build completes", func() bool { return status(t, again, id).Status == string(store.Completed) })
		require.Equal(t, fmt.Sprint("order ", i), download(t, again, id))
	}
}
