package process

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Serve serves h on a free loopback port of this process, for what takt's processes
// talk to or are compared with. stop cuts its connections and waits for its end.
func Serve(ctx context.Context, h http.Handler) (address string, stop func(), err error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("listening: %w", err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(ln) // ends with Close
	}()
	return ln.Addr().String(), func() {
		_ = server.Close() // nobody is to be answered any more
		<-ended
	}, nil
}
