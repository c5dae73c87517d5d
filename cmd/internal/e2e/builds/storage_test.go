package builds

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/storage/s3test"
	"takt/store"
)

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
			env, server := takttest.NewEnv(t), s3test.Start(t)
			server.Kill() // S3 that is away is no reason not to start
			c := env.StartController("takt", append(server.Env(), "TAKT_STORAGE="+mode, "TAKT_S3_PREFIX=our/files")...)
			env.StartWorker(c, "one", takttest.CopyOrder)
			takttest.Eventually(t, "health shows it", func() bool {
				h, err := client.Call(t.Context(), c.Client, api.ShowHealth, api.None{})
				s3, known := h.Storage["s3"].(map[string]any)
				return err == nil && known && s3["ok"] == false
			})
			var owed string
			if mode == "dual" {
				owed = takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "in a storm"}))
				takttest.Eventually(t, "it is built all the same", func() bool { return takttest.Status(t, c, owed).Status == string(store.Completed) })
			}
			server.Restart()
			id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": mode + " please"}))
			takttest.Eventually(t, "build completes", func() bool { return takttest.Status(t, c, id).Status == string(store.Completed) })
			require.Equal(t, mode+" please", takttest.Download(t, c, id))
			if mode == "s3" {
				takttest.Eventually(t, "nothing is left on the disk", func() bool { return len(takttest.Files(t, c)) == 0 }) // of the worker's report
				require.Equal(t, 2, ofBuilds(server.Objects()))
				return
			}
			takttest.Eventually(t, "S3 has got what it was owed", func() bool { return ofBuilds(server.Objects()) == 4 })
			copies := "takt_storage_copies_owed"
			takttest.Eventually(t, "nothing is owed", func() bool {
				n, err := c.Metric(t.Context(), copies)
				return err == nil && n == 0
			})
			require.NoError(t, os.RemoveAll(filepath.Join(c.DataDir, "files", "builds")))
			require.Equal(t, "in a storm", takttest.Download(t, c, owed), "S3 is enough")
		})
	}
}

// A bucket that is full, and one whose answers are damaged on their way.
func TestFaultyS3(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"s3", "dual"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			env, server := takttest.NewEnv(t), s3test.Start(t)
			proxy := server.Proxy()
			c := env.StartController("takt", append(proxy.Env(server), "TAKT_STORAGE="+mode, "TAKT_S3_PREFIX=our/files")...)
			env.StartWorker(c, "one", takttest.CopyOrder)
			proxy.Set(s3test.Refuse(http.StatusInsufficientStorage, "QuotaExceeded"))
			source := takttest.Zip(t, map[string]string{"order.txt": mode})
			if mode == "s3" {
				begun := time.Now()
				_, err := c.Client.Submit(t.Context(), client.Submit{Platform: store.IOS, Source: client.Bytes(source)})
				require.Equal(t, 503, client.StatusOf(err), "%v", err)
				require.Positive(t, client.RetryAfter(err))
				require.Less(t, time.Since(begun), 20*time.Second)
				proxy.Set(nil)
			}
			id := takttest.Submit(t, c, source)
			takttest.Eventually(t, "it is built", func() bool { return takttest.Status(t, c, id).Status == string(store.Completed) })
			if mode == "dual" {
				require.Zero(t, ofBuilds(server.Objects()))
				proxy.Set(nil)
				takttest.Eventually(t, "S3 catches up", func() bool { return ofBuilds(server.Objects()) == 2 })
				require.Eventually(t, func() bool { // the row names the object soon after
					n, err := c.Metric(t.Context(), "takt_storage_copies_owed")
					return err == nil && n == 0
				}, takttest.Patience, 20*time.Millisecond)
				require.NoError(t, os.RemoveAll(filepath.Join(c.DataDir, "files", "builds")))
			}
			require.Equal(t, mode, takttest.Download(t, c, id))
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
			require.Equal(t, mode, takttest.Download(t, c, id))
		})
	}
}
