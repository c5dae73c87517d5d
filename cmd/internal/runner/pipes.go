package runner

import (
	"io"
	"os"
	"sync"
	"time"
)

// pipe carries one output of a command.
type pipe struct{ r, w *os.File }

// pipes are stdout and stderr.
type pipes [2]pipe

// connect makes the pipes and copies what comes to the writers, until the last
// process that holds the other end is gone.
func connect(readers *sync.WaitGroup, stdout, stderr io.Writer) (pipes, error) {
	var all pipes
	for i := range all {
		r, w, err := os.Pipe()
		if err != nil {
			all.close()
			return all, err
		}
		all[i] = pipe{r, w}
	}
	for i, to := range []io.Writer{stdout, stderr} {
		readers.Go(func() { _, _ = io.Copy(to, all[i].r) })
	}
	return all, nil
}

func (p pipes) closeWriters() {
	for _, one := range p {
		_ = one.w.Close()
	}
}

// abandon ends the copying although somebody still holds the other end.
func (p pipes) abandon() {
	p.closeWriters()
	for _, one := range p {
		_ = one.r.SetReadDeadline(time.Now())
	}
}

func (p pipes) close() {
	for _, one := range p {
		if one.r != nil {
			_ = one.r.Close()
			_ = one.w.Close()
		}
	}
}
