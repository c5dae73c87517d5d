package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/load"
	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
)

// scale is what `takt-bench scale` measures, each at a size and at a tenth of it.
type scale struct {
	run
	workers, connections, streams, builds, files, fileSize int
	// dir is the data directory of a stopped takt whose history is measured as it is.
	dir string
	// watch is how long parked polls are watched.
	watch time.Duration
}

func newScale() *cobra.Command {
	s := &scale{}
	parts := map[string]func(context.Context) error{"costs": s.costs, "connections": s.parkedConnections, "streams": s.parkedStreams, "history": s.history, "backups": s.backups}
	cmd := &cobra.Command{
		Use: "scale costs|connections|streams|history|backups ...", Short: "Measure what work costs at two sizes, for docs/scale.md",
		Args: cobra.MinimumNArgs(1),
		RunE: cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) (err error) {
			for _, part := range args {
				if parts[part] == nil {
					return cli.Usage("%s is none of costs, connections, streams, history and backups", part)
				}
			}
			s.out, s.progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			if s.Site, err = process.Temporary("takt-bench", s.takt); err != nil {
				return err
			}
			s.Settings = settings
			defer func() { err = s.Clear(s.progress, err) }()
			for _, part := range args {
				s.each(ctx, part, []int{0}, func(int) error { return parts[part](ctx) })
				if ctx.Err() != nil {
					return errors.Join(append(s.broken, context.Cause(ctx))...)
				}
			}
			return errors.Join(s.broken...)
		}),
	}
	f := cmd.Flags()
	process.Flag(f, &s.takt, os.Getenv("TAKT_BINARY"))
	f.DurationVar(&s.duration, "duration", 5*time.Second, "how long each load lasts")
	f.IntVar(&s.workers, "workers", 1000, "workers of costs")
	f.IntVar(&s.connections, "connections", 15_000, "parked polls of connections")
	f.IntVar(&s.streams, "streams", 100_000, "parked polls of streams")
	f.DurationVar(&s.watch, "watch", time.Minute, "how long parked polls are watched; in a minute each is answered once")
	f.IntVar(&s.builds, "builds", 500_000, "ended builds of history and backups, with ten log lines each")
	f.IntVar(&s.files, "files", 20_000, "files of backups")
	f.IntVar(&s.fileSize, "file-size", 64<<10, "bytes of each file of backups")
	f.StringVar(&s.dir, "dir", "", "data directory of a stopped takt to take for history, in place of making one; its oldest hundredth is removed")
	return cmd
}

func (s *scale) row(cells ...any) {
	fmt.Fprintln(s.out, "| "+strings.Trim(strings.ReplaceAll(fmt.Sprintf(strings.Repeat("%v | ", len(cells)), cells...), "\n", " "), " "))
}

// each measures at each size, and prints why where that is not possible.
func (s *scale) each(ctx context.Context, what string, sizes []int, take func(n int) error) {
	for _, n := range sizes {
		if err := errors.Join(take(n), s.stopAll(ctx)); err != nil && ctx.Err() == nil {
			s.missing(what, err)
			s.row(strings.TrimSuffix(fmt.Sprint(what, " ", n), " 0"), "not taken: "+reason(err))
		}
	}
}

// costs prints what operations cost, over so many connections.
func (s *scale) costs(ctx context.Context) error {
	s.row("operation", "connections", "a second", "takt µs", "PostgreSQL µs", "WAL bytes", "rows", "connections to PostgreSQL", "resident MiB")
	s.each(ctx, "costs", []int{s.workers / 10, s.workers}, func(n int) error { return s.costsOf(ctx, n) })
	return nil
}

func (s *scale) costsOf(ctx context.Context, n int) error {
	c, err := s.start(ctx, fmt.Sprint("costs-", n), "TAKT_HUBSPOT_CLIENT_SECRET="+hookSecret, "TAKT_HUBSPOT_API_URL=http://127.0.0.1:1")
	if err != nil {
		return err
	}
	if _, err := client.Call(ctx, c.Client, api.SetRate, api.SetRateIn{ThrottleConfig: api.ThrottleConfig{
		PortalID: hookPortal, ActionID: hookAction, MaxThroughput: 1, TimePeriod: 1, TimeUnit: "day",
	}}); err != nil {
		return err
	}
	pollers, err := c.pollers(ctx, n)
	if err != nil {
		return err
	}
	take := func(what string, units int, clients []load.Client) error {
		s.say("%s, %d connections", what, len(clients))
		if err := c.renew(ctx, pollers); err != nil {
			return err
		}
		return s.cost(ctx, c, what, units, clients)
	}
	if err := take("idle poll", 1, polling(pollers, true)); err != nil {
		return err
	}
	if err := c.refill(ctx, s.backlog()); err != nil {
		return err
	}
	if err := take("assigned poll", 1, polling(pollers, false)); err != nil {
		return err
	}
	holding := holders(pollers) // on a slow machine a load may end before all have polled
	if len(holding) == 0 {
		return fmt.Errorf("no worker got a build within %s", s.duration)
	}
	for _, lines := range []int{1, 100} {
		posts := make([]*repeater, len(holding))
		body := `{"logs":[` + strings.Repeat(`{"level":"info","message":"CompileSwift normal arm64 Feature/View.swift"},`, lines-1) + `{"level":"info","message":"one more line"}]}`
		for i, p := range holding {
			posts[i] = &repeater{statuses: []int{200}, request: request(nil, "POST /api/builds/"+p.jobs[0]+"/logs", p.key, "X-Worker-Id: "+p.id+"\r\nContent-Type: application/json\r\n", body)}
		}
		if err := take(fmt.Sprintf("log line, %d in a post", lines), lines, clients(posts)); err != nil {
			return err
		}
	}
	finishers := make([]*finisher, min(max(n/10, 1), len(holding)))
	for i := range finishers {
		finishers[i] = &finisher{poller: holding[i], at: 1}
	}
	if err := take("result of 2 kB", 1, clients(finishers)); err != nil {
		return err
	}
	if err := take("submit of 2 kB", 1, clients(repeaters(n/10, newSubmitters(c.APIKey)[0].request, 201))); err != nil {
		return err
	}
	return take("webhook", 1, clients(newHooks("scale")[:max(1, n*connections/s.workers)]))
}

// finisher uploads a result for each build that its poller holds.
type finisher struct {
	*poller
	at int
}

// Next implements load.Client.
func (f *finisher) Next(buf []byte) []byte {
	if f.at == len(f.jobs) {
		return nil
	}
	var body bytes.Buffer
	w := multipart.NewWriter(&body) // a buffer takes everything
	_ = w.WriteField("build_id", f.jobs[f.at])
	_ = w.WriteField("worker_id", f.id)
	_ = w.WriteField("success", "true")
	part, _ := w.CreateFormFile("result", "result.ipa")
	_, _ = part.Write(bytes.Repeat([]byte("r"), submitSource))
	_ = w.Close()
	f.at++
	return request(buf, "POST /api/workers/result", f.key, "X-Worker-Id: "+f.id+"\r\nContent-Type: "+w.FormDataContentType()+"\r\n", body.String())
}

// Got implements load.Client.
func (f *finisher) Got(status int, body []byte) error {
	if status != http.StatusOK {
		return fmt.Errorf("result: status %d: %s", status, body)
	}
	return nil
}

const (
	sqlWAL  = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
	sqlRows = `SELECT tup_inserted + tup_updated + tup_deleted FROM pg_stat_database WHERE datname = current_database()`
)

// cost prints what one unit of a load costs; each request is so many units.
func (s *scale) cost(ctx context.Context, c *controller, what string, units int, clients []load.Client) error {
	wal, err := c.db.number(ctx, sqlWAL)
	if err != nil {
		return err
	}
	rows, err := c.db.number(ctx, sqlRows)
	if err != nil {
		return err
	}
	got, err := c.loaded(ctx, s.duration, clients)
	if err != nil {
		return err
	}
	walAfter, err := c.db.number(ctx, sqlWAL)
	if err != nil {
		return err
	}
	if err := pause(ctx, 11*time.Second); err != nil { // idle connections report their rows after ten
		return err
	}
	rowsAfter, err := c.db.number(ctx, sqlRows)
	if err != nil {
		return err
	}
	conns, err := c.db.number(ctx, `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`)
	if err != nil {
		return err
	}
	resident, _, err := c.Resident()
	n := float64(max(got.Requests*units, 1))
	us := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Nanoseconds())/1000/float64(units)) }
	s.row(what, len(clients), fmt.Sprintf("%.0f", got.Rate()*float64(units)), us(got.cpu.takt), us(got.cpu.postgres),
		fmt.Sprintf("%.0f", float64(walAfter-wal)/n), fmt.Sprintf("%.2f", float64(rowsAfter-rows)/n), conns, resident/mib)
	return err
}

// many are settings for so many parked polls that come at once. Without one takt parks as
// many as the limit of open files suggests: 9488 if that is 20000.
func many(n int) []string {
	return []string{
		fmt.Sprint("TAKT_MAX_PARKED=", n+1000), fmt.Sprint("TAKT_HEIJUNKA_HARD_LIMIT=", min(100_000, max(20_000, 2*n))),
		fmt.Sprintf("TAKT_HEIJUNKA_POOLS=fleet=10/5/30/256/%d", min(100_000, max(20_000, 2*n))),
	}
}

// parkedBy prints what n parked polls cost that park has parked.
func (s *scale) parkedBy(ctx context.Context, name string, n int, settings []string, park func(c *controller) (stop func() error, err error)) error {
	c, err := s.start(ctx, fmt.Sprint(name, n), append(many(n), settings...)...)
	if err != nil {
		return err
	}
	idle, _, err := c.Resident()
	if err != nil {
		return err
	}
	s.say("%s: parking %d polls", name, n)
	begun := time.Now()
	stop, err := park(c)
	if err != nil {
		return err
	}
	took := time.Since(begun)
	before, err := c.usage()
	if err == nil {
		err = pause(ctx, s.watch)
	}
	after, uerr := c.usage()
	wal, werr := c.db.number(ctx, sqlWAL)
	full, most, rerr := c.Resident()
	still, merr := c.Metric(ctx, "takt_queue_parked_polls")
	if err = errors.Join(err, uerr, werr, rerr, merr, stop()); err != nil {
		return err
	}
	cpu := after.minus(before)
	share := func(d time.Duration) string { return fmt.Sprintf("%.1f %%", 100*float64(d)/float64(s.watch)) }
	s.row(name, n, fmt.Sprintf("%.0f parked", still), took.Round(time.Second), fmt.Sprintf("%d MiB (peak %d)", full/mib, most/mib),
		fmt.Sprintf("%.1f kB a poll", float64(full-idle)/float64(n)/1000), "takt "+share(cpu.takt), "PostgreSQL "+share(cpu.postgres), fmt.Sprintf("%d MB WAL", wal/1_000_000))
	return nil
}

// parkedConnections prints what polls cost that wait over a connection each.
func (s *scale) parkedConnections(ctx context.Context) error {
	s.each(ctx, "connections", []int{s.connections / 10, s.connections}, func(n int) error {
		return s.parkedBy(ctx, "connections", n, nil, func(c *controller) (func() error, error) { return c.park(ctx, n, make(chan arrival, 1)) })
	})
	return nil
}

// streamsEach is how many requests takt takes over one connection with HTTP/2.
const streamsEach = 32

// parkedStreams prints the same for polls that are streams of HTTP/2, over TLS.
func (s *scale) parkedStreams(ctx context.Context) error {
	cert, key := filepath.Join(s.Dir, "cert.pem"), filepath.Join(s.Dir, "key.pem")
	pool, err := selfSigned(cert, key)
	if err != nil {
		return err
	}
	secure := []string{"TAKT_TLS_CERT=" + cert, "TAKT_TLS_KEY=" + key, "TAKT_CA_FILE=" + cert}
	s.each(ctx, "streams", []int{s.streams / 10, s.streams}, func(n int) error {
		return s.parkedBy(ctx, "streams", n, secure, func(c *controller) (func() error, error) { return s.parkStreams(ctx, c, n, pool) })
	})
	return nil
}

// parkStreams is park over HTTP/2.
func (s *scale) parkStreams(ctx context.Context, c *controller, n int, roots *x509.CertPool) (stop func() error, err error) {
	p := &parking{controller: c}
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	stop = func() error {
		cancel(errors.New("measured"))
		running.Wait()
		s.say("%d workers had to register again", p.again.Load())
		return p.failure()
	}
	keep := func(one *http.Client, worker *poller) {
		for ctx.Err() == nil {
			err := pollOnce(ctx, one, c.URL+"/api/workers/poll?wait=55", worker)
			if errors.Is(err, errExpired) { // it was refused for longer than tokens last
				p.again.Add(1)
				err = c.register(ctx, worker)
			}
			if err != nil && ctx.Err() == nil {
				p.fail(err)
				return
			}
		}
	}
	for k := range connections {
		running.Go(func() { // tokens expire, so each connection polls as soon as its workers are registered
			for from := k * streamsEach; from < n && ctx.Err() == nil && p.failure() == nil; from += connections * streamsEach {
				one := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true, MaxConnsPerHost: 1}}
				for i := from; i < min(n, from+streamsEach); i++ {
					worker, err := c.poller(ctx, i)
					if err == nil && i == from {
						err = pollOnce(ctx, one, c.URL+"/api/workers/poll", worker) // the connection is there then
					}
					if err != nil {
						p.fail(err)
						return
					}
					p.registered.Add(1)
					running.Go(func() { keep(one, worker) })
				}
			}
		})
	}
	if err := p.await(ctx, n); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

func pollOnce(ctx context.Context, c *http.Client, url string, p *poller) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header = http.Header{"X-Api-Key": {p.key}, "X-Worker-Token": {p.token}}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.ProtoMajor != 2 {
		return fmt.Errorf("poll over %s, not HTTP/2", resp.Proto)
	}
	if resp.StatusCode == http.StatusServiceUnavailable { // as a worker would
		return pause(ctx, time.Second)
	}
	if resp.StatusCode == http.StatusUnauthorized {
		return errExpired
	}
	p.idle = true
	return p.Got(resp.StatusCode, body)
}

var errExpired = errors.New("the worker's token has expired")

// selfSigned writes a certificate for the loopback address and its key.
func selfSigned(cert, key string) (*x509.CertPool, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, of, of, private.Public(), private)
	if err != nil {
		return nil, err
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(encoded)
	return pool, errors.Join(os.WriteFile(cert, encoded, 0o600), os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs}), 0o600))
}
