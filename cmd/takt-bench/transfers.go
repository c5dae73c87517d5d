package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

const (
	resultSize = 1 << 30
	crowd      = 50
	crowdSize  = 100 * mib
)

// held takes one build through submit, register and poll: a new worker holds it.
func (c *controller) held(ctx context.Context) client.Held {
	sub := must.Get(c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes([]byte("source"))}))
	reg := must.Get(c.Client.Register(ctx, api.Register{Name: "uploader", Capabilities: []byte("{}")}))
	poll := must.Get(c.Client.Poll(ctx, client.Poll{Token: reg.AccessToken}))
	if poll.Job == nil || poll.Job.ID != sub.ID {
		must.Do(fmt.Errorf("submitted %s, the worker got %+v", sub.ID, poll.Job))
	}
	return client.Held{BuildID: sub.ID, WorkerID: reg.ID, Attempt: poll.Job.Attempt}
}

// upload takes B1: a result of 1 GiB against cp and fsync on the same disk.
func (r *run) upload(ctx context.Context) {
	c := r.start(ctx, "upload")
	content, _ := r.content("result.bin", resultSize)
	most := 0
	r.compare(comparison{
		name: "B1", what: "upload of a 1 GiB result against cp + fsync, MiB", peer: "cp",
		theirs: func(int) sample {
			return work(resultSize/mib, copyAndSync(filepath.Join(r.Dir, "result.bin"), filepath.Join(r.Dir, "copy.bin")))
		}, own: func(int) sample {
			held, grown := c.held(ctx), c.growth(ctx)
			begin := time.Now()
			must.Get(c.Client.Upload(ctx, client.Upload{Held: held, Success: true, Result: &content}))
			took := time.Since(begin)
			most = max(most, grown())
			return work(resultSize/mib, took)
		}, least: .5,
	})
	r.add(memory("B1", "growth of resident memory during it, most of all rounds", most, 64*mib))
}

func copyAndSync(from, to string) time.Duration {
	begin := time.Now()
	src := must.Get(os.Open(from))
	defer src.Close()
	dst := must.Get(os.Create(to))
	// Wrapped, so that the kernel really copies: a reflink would be no peer.
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, mib))
	must.Do(errors.Join(err, dst.Sync(), dst.Close()))
	took := time.Since(begin)
	must.Do(os.Remove(to))
	return took
}

// crowded takes B2: many large results at once.
func (r *run) crowded(ctx context.Context) {
	c := r.start(ctx, "crowd")
	content, digest := r.content("crowd.bin", crowdSize)
	var builds [crowd]client.Held
	for i := range builds {
		builds[i] = c.held(ctx)
	}
	r.say("B2: %d uploads of %d MiB at once", crowd, crowdSize/mib)
	grown := c.growth(ctx)
	begin := time.Now()
	sending, stop := context.WithCancelCause(ctx)
	var sent [crowd]atomic.Int64
	var done atomic.Int64
	uploaded := must.Beside(func() {
		must.Do(must.Spread(crowd, crowd, func(i int) {
			defer done.Add(1)
			own := furthest(content, &sent[i])
			// Those that are refused for now come again when they are asked to.
			must.Do(client.Retry{}.Do(sending, func(ctx context.Context) error {
				_, err := c.Client.Upload(ctx, client.Upload{Held: builds[i], Success: true, Result: &own})
				return err
			}))
		}))
	})
	err := c.Await(ctx, fmt.Sprintf("%d uploads to end", crowd), func() string {
		all := int64(0)
		for i := range sent {
			all += sent[i].Load()
		}
		return fmt.Sprintf("%d ended, %d MiB sent", done.Load(), all/mib)
	}, func(context.Context) (bool, error) { return done.Load() == crowd, nil })
	stop(err)
	must.Do(errors.Join(uploaded(), err))
	took := time.Since(begin)
	f := memory("B2", fmt.Sprintf("growth of resident memory during %d uploads of %d MiB at once", crowd, crowdSize/mib), grown(), 128*mib)
	f.measured += fmt.Sprintf(", at %.0f MiB/s", crowd*crowdSize/mib/took.Seconds())
	f.target += ", nothing lost"
	r.add(f)
	checkResults(ctx, c.db, crowd, crowdSize, digest)
}

// furthest is c, of which n says how much was read: what is sent again is no progress.
func furthest(c client.Content, n *atomic.Int64) client.Content {
	open := c.Open
	c.Open = func() (io.ReadCloser, error) {
		r, err := open()
		return &furthestBody{r, 0, n}, err
	}
	return c
}

type furthestBody struct {
	io.ReadCloser
	at int64
	n  *atomic.Int64
}

func (b *furthestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.at += int64(n)
	b.n.Store(max(b.n.Load(), b.at))
	return n, err
}

// checkResults looks for n completed builds, each with the result that was sent.
func checkResults(ctx context.Context, db database, n int, size int64, digest [32]byte) {
	db.expect(ctx, "completed builds with the whole result", fmt.Sprintf(
		`SELECT count(*) FROM builds b JOIN build_files f ON f.build = b.seq AND f.kind = 'result'
		WHERE b.state = 'completed' AND b.attempt = 1 AND f.size = %d AND f.sha256 = '\x%s'`, size, hex.EncodeToString(digest[:])), n)
}

// content makes a file of random bytes.
func (r *run) content(name string, size int64) (content client.Content, digest [32]byte) {
	f := must.Get(os.Create(filepath.Join(r.Dir, name)))
	hash := sha256.New()
	w := bufio.NewWriterSize(f, mib)
	_, err := io.CopyN(io.MultiWriter(w, hash), rand.NewChaCha8([32]byte{}), size)
	must.Do(errors.Join(err, w.Flush(), f.Sync(), f.Close()))
	return must.Get(client.File(f.Name())), [32]byte(hash.Sum(nil))
}

// downloads takes B3: a result of 1 GiB against a server that does nothing but
// sendfile, which is how nginx serves a file. The same client reads from both.
func (r *run) downloads(ctx context.Context) {
	c := r.start(ctx, "download")
	content, digest := r.content("download.bin", resultSize)
	held := c.held(ctx)
	must.Get(c.Client.Upload(ctx, client.Upload{Held: held, Success: true, Result: &content}))
	kept := filepath.Join(c.DataDir, "files", "builds", held.BuildID, "result.ipa")
	// net/http hands the file to the kernel.
	peer, stop, err := process.Serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { http.ServeFile(w, req, kept) }))
	must.Do(err)
	defer stop()
	address, hash := c.URL+"/api/builds/"+held.BuildID+"/download", sha256.New()
	fetch(ctx, address, c.APIKey, hash)
	if [32]byte(hash.Sum(nil)) != digest {
		must.Do(fmt.Errorf("%w: the download is not what was uploaded", errBroken))
	}
	r.compare(comparison{
		name: "B3", what: "download of 1 GiB against sendfile of the same file, MiB", peer: "sendfile",
		theirs: func(int) sample { return fetch(ctx, "http://"+peer, "", io.Discard) },
		own:    func(int) sample { return fetch(ctx, address, c.APIKey, io.Discard) }, least: .7,
	})
	checkResults(ctx, c.db, 1, resultSize, digest)
}

// fetch reads all of address.
func fetch(ctx context.Context, address, key string, to io.Writer) sample {
	req := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, address, nil))
	if key != "" {
		req.Header.Set("X-API-Key", key)
	}
	transport := &http.Transport{DisableCompression: true, ReadBufferSize: 4096}
	defer transport.CloseIdleConnections()
	begin := time.Now()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	must.Do(err)
	defer resp.Body.Close()
	n := must.Get(io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{resp.Body}, make([]byte, mib)))
	if resp.StatusCode != http.StatusOK || n != resultSize {
		must.Do(fmt.Errorf("downloading: status %d, %d bytes", resp.StatusCode, n))
	}
	return work(resultSize/mib, time.Since(begin))
}
