package http

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/certs"
	"takt/http/edge"
	"takt/storage"
	"takt/store"
	"takt/store/metrics"
)

// holders serves workers that hold a build: they fetch its files, send heartbeats and logs,
// and finish it.
type holders struct {
	edge     *edge.Server
	cfg      Config
	store    Builds
	followed *followers
	queue    Queue
	tokens   *store.WorkerTokens
	publish  Publish
	forms    *uploads
}

func (h *holders) routes() []edge.Route {
	return []edge.Route{
		edge.OnRequest(h.edge, api.FetchSource, h.source),
		edge.OnRequest(h.edge, api.FetchCerts, h.certs),
		edge.OnRequest(h.edge, api.FetchCertsSecure, h.certsSecure),
		edge.OnAs(h.edge, api.PostTelemetry, h.telemetry),
		edge.OnAs(h.edge, api.WriteLogs, h.logs),
		edge.OnAs(h.edge, api.SendHeartbeat, h.heartbeat),
		edge.OnAs(h.edge, api.SendHeartbeatByBody, h.heartbeatByBody),
		edge.OnAs(h.edge, api.FailHeldBuild, h.fail),
		edge.OnRequest(h.edge, api.UploadResult, h.upload),
		edge.OnRequest(h.edge, api.UploadResultAlias, h.upload),
	}
}

// heartbeatOf returns the heartbeat of a request. The store checks that the worker holds the build.
func heartbeatOf(in api.Holding) store.Heartbeat {
	return store.Heartbeat{BuildID: string(in.ID), WorkerID: string(in.WorkerID), Attempt: in.Attempt, Instance: in.Instance}
}

// touch records a heartbeat.
func (h *holders) touch(ctx context.Context, heartbeat store.Heartbeat) error {
	reply, err := h.store.RecordHeartbeat(ctx, heartbeat)
	return h.publishHeartbeat(ctx, heartbeat, reply, err)
}

// publishHeartbeat publishes the changes that a heartbeat made, unless err is set.
func (h *holders) publishHeartbeat(ctx context.Context, heartbeat store.Heartbeat, reply store.HeartbeatReply, err error) error {
	if err != nil {
		return err
	}
	if len(heartbeat.Logs) > 0 {
		h.followed.wake(heartbeat.BuildID)
	}
	if reply.Began {
		h.publish(store.TopicBuildUpdated, store.BuildUpdate{
			BuildID: heartbeat.BuildID, State: store.Building, WorkerID: heartbeat.WorkerID,
			Step: store.Step{What: store.StepBegan, Attempt: reply.Attempt},
		})
	}
	if reply.Cancelled {
		if b, err := h.store.Find(ctx, heartbeat.BuildID); err == nil && b.State == store.Cancelled {
			metrics.Observe(ctx, h.edge.Observed.CancelTold.WithLabelValues(), time.Since(b.CompletedAt))
		}
	}
	return nil
}

// presence returns a function that records a heartbeat once PresenceInterval has passed since
// the last one. It is called for as long as bytes move.
func (h *holders) presence(ctx context.Context, heartbeat store.Heartbeat) func(now time.Time) {
	next := time.Now().Add(h.cfg.PresenceInterval)
	return func(now time.Time) {
		if now.Before(next) {
			return
		}
		next = now.Add(h.cfg.PresenceInterval)
		if err := h.touch(ctx, heartbeat); err != nil {
			// The error is only logged because the end of the transfer decides who holds
			// the build.
			h.edge.Log.Debug().Err(err).Str("build", heartbeat.BuildID).Msg("heartbeat of a transfer not recorded")
		}
	}
}

// sendTo sends a file to the worker that holds its build. The transfer counts as a heartbeat;
// the first heartbeat turns an assigned build into a building one.
func (h *holders) sendTo(ctx context.Context, c echo.Context, heartbeat store.Heartbeat, d edge.Download) (any, error) {
	if c.Request().Method != http.MethodHead {
		if err := h.touch(ctx, heartbeat); err != nil {
			return nil, err
		}
		h.edge.Belongs(edge.CallerOf(ctx), heartbeat.WorkerID)
	}
	d.ContentType, d.Moved = "application/zip", h.presence(ctx, heartbeat)
	return nil, h.edge.SendDownload(c, d)
}

func (h *holders) source(ctx context.Context, c echo.Context, in api.Holding) (any, error) {
	heartbeat := heartbeatOf(in)
	b, err := h.store.Held(ctx, heartbeat)
	if err != nil {
		return nil, err
	}
	file, err := open(ctx, b.Source, h.forms.files.Open, "Source not found")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return h.sendTo(ctx, c, heartbeat, edge.Download{Name: b.ID + ".zip", Content: file.Content, Digest: b.Source.SHA256})
}

func (h *holders) openCerts(ctx context.Context, b store.Build) (*storage.SealedFile, error) {
	return open(ctx, b.Certs, h.forms.files.OpenSealed, "Certs not found")
}

func (h *holders) certs(ctx context.Context, c echo.Context, in api.Holding) (any, error) {
	heartbeat := heartbeatOf(in)
	b, err := h.store.Held(ctx, heartbeat)
	if err != nil {
		return nil, err
	}
	file, err := h.openCerts(ctx, b)
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read from
	return h.sendTo(ctx, c, heartbeat, edge.Download{Name: b.ID + "-certs.zip", Cache: "no-store", Content: file, Digest: b.Certs.SHA256})
}

// keychainBytes is how many random bytes a keychain's password has.
const keychainBytes = 24

// certsSecure sends the unpacked certificates, for a virtual machine that can't unpack them
// itself.
func (h *holders) certsSecure(ctx context.Context, c echo.Context, in api.HoldingWithBuild) (any, error) {
	heartbeat := heartbeatOf(in.Holding)
	b, err := h.store.Held(ctx, heartbeat)
	if err != nil {
		return nil, err
	}
	unit, err := h.edge.Limit(edge.RuleCertificates).Take(ctx, h.edge.ShareOf(c), nil)
	if err != nil {
		return nil, err
	}
	defer unit.Release()
	bundle, err := h.unpackCerts(ctx, b)
	if err != nil {
		return nil, err
	}
	if err := h.touch(ctx, heartbeat); err != nil {
		return nil, err
	}
	password := make([]byte, keychainBytes)
	_, _ = rand.Read(password) // never fails
	_ = http.NewResponseController(c.Response().Writer).SetWriteDeadline(time.Now().Add(edge.UnpackPatience))
	return nil, h.edge.Reply(c, api.SecureCerts{
		P12: bundle.P12, P12Password: bundle.Password, ProvisioningProfiles: bundle.Profiles,
		KeychainPassword: base64.StdEncoding.EncodeToString(password),
	})
}

// unpackCerts reads the certificates of b.
func (h *holders) unpackCerts(ctx context.Context, b store.Build) (certs.Bundle, error) {
	file, err := h.openCerts(ctx, b)
	if err != nil {
		return certs.Bundle{}, err
	}
	defer file.Close() // only read from
	archive, err := io.ReadAll(file)
	if err != nil {
		return certs.Bundle{}, err
	}
	bundle, err := certs.Unpack(bytes.NewReader(archive), int64(len(archive)), certs.MaxBytes)
	if err != nil {
		return bundle, store.Wrap(store.CertsUnusable, "Failed to process certs file", err)
	}
	return bundle, nil
}
