package main

import (
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
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
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
	parts := map[string]func(context.Context){"costs": s.costs, "connections": s.parkedConnections, "streams": s.parkedStreams, "history": s.history, "backups": s.backups}
	cmd := &cobra.Command{
		Use: "scale costs|connections|streams|history|backups ...", Short: "Measure what work costs at two sizes, for docs/scale.md",
		Args: cobra.MinimumNArgs(1),
		RunE: cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			for _, part := range args {
				if parts[part] == nil {
					return cli.Usage("%s is none of costs, connections, streams, history and backups", part)
				}
			}
			s.out, s.progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return s.in(ctx, func() error {
				for _, part := range args {
					s.each(ctx, part, []int{0}, func(int) { parts[part](ctx) })
				}
				return nil
			})
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
func (s *scale) each(ctx context.Context, what string, sizes []int, take func(n int)) {
	for _, n := range sizes {
		if ctx.Err() != nil {
			return
		}
		if err := errors.Join(must.Try(func() { take(n) }), s.end()); err != nil {
			s.missing(what, err)
			s.row(strings.TrimSuffix(fmt.Sprint(what, " ", n), " 0"), "not taken: "+reason(err))
		}
	}
}

// costs prints what operations cost, over so many connections.
func (s *scale) costs(ctx context.Context) {
	s.row("operation", "connections", "a second", "takt µs", "PostgreSQL µs", "WAL bytes", "rows", "connections to PostgreSQL", "resident MiB")
	s.each(ctx, "costs", []int{s.workers / 10, s.workers}, func(n int) { s.costsOf(ctx, n) })
}

func (s *scale) costsOf(ctx context.Context, n int) {
	c := s.startHooked(ctx, fmt.Sprint("costs-", n))
	pollers := c.pollers(ctx, n)
	take := func(what string, units int, clients []load.Client) {
		s.say("%s, %d connections", what, len(clients))
		c.renew(ctx, pollers)
		s.cost(ctx, c, what, units, clients)
	}
	take("idle poll", 1, polling(pollers, true))
	c.refill(ctx, s.backlog())
	take("assigned poll", 1, polling(pollers, false))
	holding := holders(pollers) // on a slow machine a load may end before all have polled
	if len(holding) == 0 {
		must.Do(fmt.Errorf("no worker got a build within %s", s.duration))
	}
	for _, lines := range []int{1, 100} {
		var posts []*repeater
		for _, p := range holding {
			posts = append(posts, repeaters(1, p.logs(p.jobs[0], logsOf(lines)), 200)...)
		}
		take(fmt.Sprintf("log line, %d in a post", lines), lines, clients(posts))
	}
	finishers := make([]*finisher, min(max(n/10, 1), len(holding)))
	for i := range finishers {
		finishers[i] = newFinisher(holding[i], false)
		finishers[i].at = 1
	}
	take("result of 2 kB", 1, clients(finishers))
	take("submit of 2 kB", 1, clients(newSubmitters(c.APIKey, n/10)))
	take("webhook", 1, clients(newHooks("scale", max(1, n*connections/s.workers))))
}

// cost prints what one unit of a load costs; each request is so many units.
func (s *scale) cost(ctx context.Context, c *controller, what string, units int, clients []load.Client) {
	wal, rows := c.db.number(ctx, sqlWAL), c.db.number(ctx, sqlRows)
	got := c.loaded(ctx, s.duration, clients)
	wal = c.db.number(ctx, sqlWAL) - wal
	process.Pause(ctx, 11*time.Second) // idle connections report their rows after ten
	rows = c.db.number(ctx, sqlRows) - rows
	conns := c.db.number(ctx, `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`)
	n := float64(max(got.Requests*units, 1))
	us := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Nanoseconds())/1000/float64(units)) }
	s.row(what, len(clients), fmt.Sprintf("%.0f", got.Rate()*float64(units)), us(got.cpu.takt), us(got.cpu.postgres),
		fmt.Sprintf("%.0f", float64(wal)/n), fmt.Sprintf("%.2f", float64(rows)/n), conns, c.resident()/mib)
}

// many are settings for so many parked polls that come at once. Without one takt parks as
// many as the limit of open files suggests: 9488 if that is 20000.
func many(n int) []string {
	return []string{
		fmt.Sprint("TAKT_MAX_PARKED=", n+1000), fmt.Sprint("TAKT_HEIJUNKA_HARD_LIMIT=", min(100_000, max(20_000, 2*n))),
		fmt.Sprintf("TAKT_HEIJUNKA_POOLS=fleet=10/5/30/256/%d", min(100_000, max(20_000, 2*n))),
	}
}

// parkedBy prints what n parked polls cost, of which so many share a connection that dial makes.
func (s *scale) parkedBy(ctx context.Context, name string, n, each int, dial dial, settings ...string) {
	c := s.start(ctx, fmt.Sprint(name, n), append(many(n), settings...)...)
	idle := c.resident()
	s.say("%s: parking %d polls", name, n)
	begun := time.Now()
	p := s.park(ctx, c, n, each, dial, nil)
	took, before := time.Since(begun), c.usage()
	process.Pause(ctx, s.watch)
	cpu, wal := c.usage().minus(before), c.db.number(ctx, sqlWAL)
	full, most, err := c.Resident()
	still, merr := c.Metric(ctx, "takt_queue_parked_polls")
	must.Do(errors.Join(err, merr, p.failure()))
	share := func(d time.Duration) string { return fmt.Sprintf("%.1f %%", 100*float64(d)/float64(s.watch)) }
	s.row(name, n, fmt.Sprintf("%.0f parked", still), took.Round(time.Second), fmt.Sprintf("%d MiB (peak %d)", full/mib, most/mib),
		fmt.Sprintf("%.1f kB a poll", float64(full-idle)/float64(n)/1000), "takt "+share(cpu.takt), "PostgreSQL "+share(cpu.postgres), megabytes(wal)+" WAL")
}

// parkedConnections prints what polls cost that wait over a connection each.
func (s *scale) parkedConnections(ctx context.Context) {
	s.each(ctx, "connections", []int{s.connections / 10, s.connections}, func(n int) { s.parkedBy(ctx, "connections", n, 1, ownConnection) })
}

// parkedStreams prints the same for polls that are streams of HTTP/2, over TLS.
func (s *scale) parkedStreams(ctx context.Context) {
	const each = 32 // requests that takt takes over one connection
	cert, key := filepath.Join(s.Dir, "cert.pem"), filepath.Join(s.Dir, "key.pem")
	roots := selfSigned(cert, key)
	shared := func(ctx context.Context, c *controller) (poll, error) {
		one := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true, MaxConnsPerHost: 1}}
		get := func(ctx context.Context, path string, header http.Header) (status int, body []byte, err error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path, nil)
			if err != nil {
				return 0, nil, err
			}
			req.Header = header
			resp, err := one.Do(req)
			if err != nil {
				return 0, nil, err
			}
			body, err = io.ReadAll(resp.Body)
			if resp.ProtoMajor != 2 {
				err = fmt.Errorf("poll over %s, not HTTP/2", resp.Proto)
			}
			return resp.StatusCode, body, errors.Join(err, resp.Body.Close())
		}
		_, _, err := get(ctx, "/livez", nil) // the connection is there then
		return func(ctx context.Context, worker *poller) (int, []byte, error) {
			return get(ctx, "/api/workers/poll?wait=55", http.Header{"X-Api-Key": {worker.key}, "X-Worker-Token": {worker.token}})
		}, err
	}
	s.each(ctx, "streams", []int{s.streams / 10, s.streams}, func(n int) {
		s.parkedBy(ctx, "streams", n, each, shared, "TAKT_TLS_CERT="+cert, "TAKT_TLS_KEY="+key, "TAKT_CA_FILE="+cert)
	})
}

// selfSigned writes a certificate for the loopback address and its key.
func selfSigned(cert, key string) *x509.CertPool {
	private := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der := must.Get(x509.CreateCertificate(rand.Reader, of, of, private.Public(), private))
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	must.Do(os.WriteFile(cert, encoded, 0o600))
	must.Do(os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must.Get(x509.MarshalPKCS8PrivateKey(private))}), 0o600))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(encoded)
	return pool
}
