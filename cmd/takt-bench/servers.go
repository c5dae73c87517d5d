package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
)

// talk is a connection to a server whose protocol has lines.
type talk struct {
	net.Conn
	in    *bufio.Reader
	name  string // no other has it at the same time
	wants string // the request for a job, of Redis
}

func (t *talk) send(format string, args ...any) { must.Get(fmt.Fprintf(t, format, args...)) }

// line reads one, which is valid until the next.
func (t *talk) line() []byte { return bytes.TrimRight(must.Get(t.in.ReadSlice('\n')), "\r\n") }

// expect reads a line that has to begin so.
func (t *talk) expect(prefix string) (rest []byte) {
	line := t.line()
	rest, ok := bytes.CutPrefix(line, []byte(prefix))
	if !ok {
		must.Do(fmt.Errorf("%s answered %q, not %s", t.RemoteAddr(), line, prefix))
	}
	return rest
}

// rest reads n more bytes and the end of their line.
func (t *talk) rest(n int) string {
	buf := make([]byte, n+2)
	must.Get(io.ReadFull(t.in, buf))
	return string(buf[:n])
}

// after is the number after the first occurrence of each of these words, one within the other.
func after(text string, words ...string) int {
	for _, w := range words {
		_, text, _ = strings.Cut(text, w)
	}
	return must.Get(strconv.Atoi(text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]))
}

// server is a queue that is a process of its own.
type server struct {
	*process.Process
	address string
	greet   func(t *talk)        // begins a connection; may be nil
	put     func(t *talk, n int) // makes n jobs
	take    func(t *talk) bool   // takes a job and ends it, unless there is none
	left    func(t *talk) int    // jobs that have not ended
}

// serve starts a server that is to listen on address.
func (p *peers) serve(ctx context.Context, program, address string, args ...string) *server {
	site := p.Site
	site.Takt, site.Settings = program, nil
	s := &server{Process: must.Get(site.Launch(filepath.Base(program), nil, args...)), address: address}
	p.atEnd(func() error {
		s.Kill() // all has been checked
		return nil
	})
	must.Do(s.Await(ctx, s.Name+" to listen", nil, func(ctx context.Context) (bool, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close() // nothing was sent
		}
		return err == nil, nil
	}))
	return s
}

// place makes a directory for a server, and finds a free port.
func (p *peers) place(ctx context.Context, name string) (dir, address, port string) {
	dir = filepath.Join(p.Dir, name)
	ln := must.Get((&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"))
	_, port, _ = net.SplitHostPort(ln.Addr().String()) // it is one
	must.Do(errors.Join(ln.Close(), os.Mkdir(dir, 0o700)))
	return dir, ln.Addr().String(), port
}

// with lets n connections be used, each by a goroutine of its own.
func (s *server) with(ctx context.Context, n int, d time.Duration, use func(all []*talk)) {
	all := make([]*talk, n)
	defer func() {
		for _, t := range all {
			if t != nil {
				_ = t.Close() // every reply was read
			}
		}
	}()
	for i := range all {
		conn := must.Get((&net.Dialer{}).DialContext(ctx, "tcp", s.address))
		all[i] = &talk{Conn: conn, in: bufio.NewReader(conn), name: fmt.Sprint("client", i)}
		must.Do(conn.SetDeadline(time.Now().Add(d + time.Minute)))
		if s.greet != nil {
			s.greet(all[i])
		}
	}
	use(all)
}

func (s *server) fill(ctx context.Context, jobs int) {
	const each, conns = 100, 16
	s.with(ctx, conns, 10*time.Minute, func(all []*talk) {
		must.Do(must.Spread(conns, conns, func(i int) {
			// A share, and one of what is left over.
			for n := (jobs + i) / conns; n > 0; n -= each {
				s.put(all[i], min(n, each))
			}
		}))
	})
}

func (s *server) work(ctx context.Context, n int, d time.Duration) (got sample) {
	s.with(ctx, n, d, func(all []*talk) {
		counts := make([]int, n)
		before, begun := must.Get(process.TimesOf(s.PID())).Own, time.Now()
		must.Do(must.Spread(n, n, func(i int) {
			for ctx.Err() == nil && time.Since(begun) < d && s.take(all[i]) {
				counts[i]++
			}
		}))
		took, sum := time.Since(begun), 0
		for _, c := range counts {
			sum += c
		}
		got = work(sum, took)
		got.cpu = usage{takt: must.Get(process.TimesOf(s.PID())).Own - before}.of(sum)
	})
	return got
}

func (s *server) check(ctx context.Context, made, acknowledged int) {
	s.with(ctx, 1, 0, func(all []*talk) {
		if left := s.left(all[0]); left != made-acknowledged {
			must.Do(fmt.Errorf("%s has %d jobs left of %d, of which it acknowledged %d", s.Name, left, made, acknowledged))
		}
	})
}

// startBeanstalkd starts beanstalkd, which syncs its log with each write. A reserved job is not
// written: it is ready again after a crash, or when its connection ends.
func (p *peers) startBeanstalkd(ctx context.Context) queue {
	dir, address, port := p.place(ctx, "beanstalkd")
	s := p.serve(ctx, filepath.Join(p.tools, "beanstalkd"), address, "-l", "127.0.0.1", "-p", port, "-b", dir, "-f", "0")
	put := fmt.Sprintf("put 0 0 600 %d\r\n%s\r\n", jobSize, jobText())
	s.put = func(t *talk, n int) {
		t.send("%s", strings.Repeat(put, n))
		for range n {
			t.expect("INSERTED ")
		}
	}
	s.take = func(t *talk) bool {
		t.send("reserve-with-timeout 0\r\n")
		line := t.line()
		if string(line) == "TIMED_OUT" {
			return false
		}
		words := bytes.Fields(line)
		if len(words) != 3 || string(words[0]) != "RESERVED" {
			must.Do(fmt.Errorf("beanstalkd answered %q to a reserve", line))
		}
		id := string(words[1])
		t.rest(jobSize)
		t.send("delete %s\r\n", id)
		t.expect("DELETED")
		return true
	}
	s.left = func(t *talk) int {
		t.send("stats\r\n")
		stats := t.rest(must.Get(strconv.Atoi(string(t.expect("OK ")))))
		return after(stats, "current-jobs-ready: ") + after(stats, "current-jobs-reserved: ")
	}
	return s
}

// startRedis starts Redis, which syncs its log before it answers: the take, which notes who has the
// job, and its end.
func (p *peers) startRedis(ctx context.Context) queue {
	dir, address, port := p.place(ctx, "redis")
	s := p.serve(ctx, filepath.Join(p.tools, "redis-server"), address, "--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0")
	command := func(words ...string) (text string) {
		for _, w := range words {
			text += fmt.Sprintf("$%d\r\n%s\r\n", len(w), w)
		}
		return fmt.Sprintf("*%d\r\n%s", len(words), text)
	}
	s.with(ctx, 1, 0, func(all []*talk) {
		all[0].send("%s", command("XGROUP", "CREATE", "jobs", "workers", "0", "MKSTREAM"))
		all[0].expect("+OK")
	})
	s.greet = func(t *talk) {
		t.wants = command("XREADGROUP", "GROUP", "workers", t.name, "COUNT", "1", "STREAMS", "jobs", ">")
	}
	add := command("XADD", "jobs", "*", "j", jobText())
	s.put = func(t *talk, n int) {
		t.send("%s", strings.Repeat(add, n))
		for range n {
			t.expect("$") // the size of the id
			t.line()
		}
	}
	s.take = func(t *talk) bool {
		t.send("%s", t.wants)
		if string(t.expect("*")) == "-1" {
			return false
		}
		const above = 6 // lines, which say what follows: one stream, its name, one entry
		for range above {
			t.line()
		}
		id := string(t.line())
		for range 4 { // one field and its name, and the size of its value
			t.line()
		}
		t.rest(jobSize)
		t.send("*4\r\n$4\r\nXACK\r\n$4\r\njobs\r\n$7\r\nworkers\r\n$%d\r\n%s\r\n", len(id), id)
		t.expect(":1")
		return true
	}
	s.left = func(t *talk) int {
		t.send("%s", command("XINFO", "GROUPS", "jobs"))
		t.expect("*1")
		n, _ := strconv.Atoi(string(t.expect("*")))
		var info strings.Builder
		for range n {
			line := t.line()
			if line[0] == '$' {
				line = t.line()
			}
			info.Write(line)
			info.WriteByte(' ')
		}
		return after(info.String(), "pending :") + after(info.String(), "lag :")
	}
	return s
}

// message reads the next message. reply is the subject for an answer to it.
func (t *talk) message() (reply, body string) {
	for {
		words := strings.Fields(string(t.line()))
		switch last := words[len(words)-1]; words[0] {
		case "PING":
			t.send("PONG\r\n")
		case "MSG", "HMSG":
			if len(words) == 5 { // MSG subject id reply size
				reply = words[3]
			}
			return reply, t.rest(must.Get(strconv.Atoi(last)))
		case "-ERR":
			must.Do(fmt.Errorf("NATS answered %q", words))
		}
	}
}

// ask publishes a request, whose answer comes to the connection's inbox, and reads that.
func (t *talk) ask(subject, body string) (reply, answer string) {
	t.send("PUB %s %s %d\r\n%s\r\n", subject, t.name, len(body), body)
	return t.message()
}

// startNATS starts NATS with a stream that is a work queue: what is acknowledged is removed. It
// syncs each write of the stream, and answers an acknowledgement when it is recorded.
func (p *peers) startNATS(ctx context.Context) queue {
	dir, address, port := p.place(ctx, "nats")
	conf := filepath.Join(dir, "nats.conf")
	must.Do(os.WriteFile(conf, fmt.Appendf(nil, "listen: 127.0.0.1:%s\njetstream { store_dir: %q, sync_interval: always }\n", port, dir), 0o600))
	s := p.serve(ctx, p.nats, address, "-c", conf)
	s.greet = func(t *talk) {
		t.expect("INFO ")
		t.send("CONNECT {\"verbose\":false}\r\nSUB %s 1\r\n", t.name)
	}
	s.with(ctx, 1, 0, func(all []*talk) {
		for _, a := range [][2]string{
			{"STREAM.CREATE.jobs", `{"name":"jobs","subjects":["jobs"],"retention":"workqueue","storage":"file","num_replicas":1}`},
			{"CONSUMER.DURABLE.CREATE.jobs.workers", `{"stream_name":"jobs","config":{"durable_name":"workers","ack_policy":"explicit","max_ack_pending":-1}}`},
		} {
			if _, answer := all[0].ask("$JS.API."+a[0], a[1]); strings.Contains(answer, `"error"`) {
				must.Do(fmt.Errorf("NATS refused %s: %s", a[0], answer))
			}
		}
	})
	s.put = func(t *talk, n int) {
		t.send("%s", strings.Repeat(fmt.Sprintf("PUB jobs %s %d\r\n%s\r\n", t.name, jobSize, jobText()), n))
		for range n {
			if _, answer := t.message(); strings.Contains(answer, `"error"`) {
				must.Do(fmt.Errorf("NATS refused a job: %s", answer))
			}
		}
	}
	s.take = func(t *talk) bool {
		reply, job := t.ask("$JS.API.CONSUMER.MSG.NEXT.jobs.workers", `{"batch":1,"no_wait":true}`)
		if reply == "" { // a status
			return false
		}
		if len(job) != jobSize {
			must.Do(fmt.Errorf("NATS gave the job %q", job))
		}
		t.ask(reply, "+ACK")
		return true
	}
	s.left = func(t *talk) int {
		_, info := t.ask("$JS.API.STREAM.INFO.jobs", "")
		return after(info, `"state":{`, `"messages":`)
	}
	return s
}
