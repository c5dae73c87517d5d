package http

import (
	"net/http"
	"path"
	"strconv"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// identify reads the attempt and the process of the worker that a beat comes from. Either
// may be absent.
func identify(beat *store.Beat, h http.Header) (err error) {
	if v := h.Get(api.HeaderBuildAttempt); v != "" {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < 1 {
			return edge.Invalid("Invalid X-Build-Attempt header")
		}
		beat.Attempt = int(n)
	}
	beat.Instance, err = instance(h)
	return err
}

// instance reads X-Worker-Instance; "" if it was not sent.
func instance(h http.Header) (string, error) {
	id := edge.Header(h, edge.HeaderInstance)
	if id != "" && !store.ValidID(id) {
		return "", edge.Invalid("Invalid X-Worker-Instance header")
	}
	return id, nil
}

func buildNotFound() error { return store.NewError(store.NotFound, "Build not found") }

func workerNotFound() error { return store.NewError(store.NotFound, "Worker not found") }

func deploymentNotFound() error { return store.NewError(store.NotFound, "Deployment not found") }

// Names of a build's files in storage.
func sourceName(id string) string { return path.Join("builds", id, "source.zip") }
func certsName(id string) string  { return path.Join("builds", id, "certs.zip") }
func resultName(id string, p store.Platform) string {
	return path.Join("builds", id, "result"+p.ResultExt())
}
