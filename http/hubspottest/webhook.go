package hubspottest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strconv"
	"time"

	"takt/store/hubspot"
)

// Webhook is a workflow action that HubSpot sends.
type Webhook struct {
	PortalID, ActionID, WorkflowID int64
	CallbackID                     string
}

// Body returns the request body that HubSpot sends.
func (a Webhook) Body() []byte {
	body, err := json.Marshal(map[string]any{
		"callbackId": a.CallbackID,
		"origin": map[string]any{
			"portalId": a.PortalID, "actionDefinitionId": a.ActionID, "actionDefinitionVersion": 1,
			"actionExecutionIndexIdentifier": map[string]any{"enrollmentId": 1, "actionExecutionIndex": 0},
		},
		"context":     map[string]any{"source": "WORKFLOWS", "workflowId": a.WorkflowID, "actionId": 1},
		"object":      map[string]any{"objectId": 614, "objectType": "CONTACT", "properties": map[string]any{}},
		"fields":      map[string]any{},
		"inputFields": map[string]any{"maxThroughPut": "10", "time": "1", "period": "seconds"},
	})
	if err != nil {
		panic(err) // can't happen: only plain values
	}
	return body
}

// Sign sets the signature headers of versions 2 and 3.
func Sign(h http.Header, secret, method, uri string, body []byte, now time.Time) {
	stamp := strconv.FormatInt(now.UnixMilli(), 10)
	h.Set(hubspot.HeaderSignature, hubspot.SignV2(secret, method, uri, body))
	h.Set(hubspot.HeaderVersion, "v2")
	h.Set(hubspot.HeaderSignatureV3, hubspot.SignV3(secret, method, uri, body, stamp))
	h.Set(hubspot.HeaderTimestamp, stamp)
}

// Fire sends a to target and returns the status and body of the answer. It signs for uri,
// the public address of target. An error means that there was no answer.
func (h *HubSpot) Fire(ctx context.Context, c *http.Client, target, uri string, a Webhook) (status int, reply string, err error) {
	body := a.Body()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return 0, "", fmt.Errorf("firing a webhook: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	Sign(req.Header, h.cfg.ClientSecret, http.MethodPost, uri, body, time.Now())
	status, reply, _, err = send(c, req)
	return status, reply, err
}

func send(c *http.Client, req *http.Request) (status int, body string, header http.Header, err error) {
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return resp.StatusCode, string(raw), resp.Header, err
}

// Install makes a portal install the app. It follows the redirects like a browser: from
// authorize (takt's own address) to HubSpot and back to callback.
func (h *HubSpot) Install(ctx context.Context, authorize, callback string, portal int64) error {
	return h.InstallWith(ctx, authorize, callback, portal, "")
}

// InstallWith is like Install, but replaces HubSpot's code by code unless that is "".
func (h *HubSpot) InstallWith(ctx context.Context, authorize, callback string, portal int64, code string) error {
	jar, _ := cookiejar.New(nil) // never fails
	page, err := visit(ctx, jar, authorize, http.StatusFound)
	if err != nil {
		return err
	}
	q, err := h.Agree(ctx, page, portal)
	if err != nil {
		return err
	}
	if code != "" {
		q.Set("code", code)
	}
	_, err = visit(ctx, jar, callback+"?"+q.Encode(), http.StatusOK)
	return err
}

// Agree visits HubSpot's page of an installation as a user of the portal, who agrees. It
// returns the parameters with which HubSpot sends the user back: state and code.
func (h *HubSpot) Agree(ctx context.Context, page string, portal int64) (url.Values, error) {
	back, err := visit(ctx, nil, fmt.Sprintf("%s&portal=%d", page, portal), http.StatusFound)
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(back)
	if err != nil {
		return nil, fmt.Errorf("installing: %w", err)
	}
	return at.Query(), nil
}

// visit requests a page like a browser and returns the address that it redirects to.
func visit(ctx context.Context, jar http.CookieJar, at string, want int) (string, error) {
	browser := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer browser.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("installing: %w", err)
	}
	status, body, header, err := send(browser, req)
	if err == nil && status != want {
		err = fmt.Errorf("installing: %s answered %d: %s", req.URL.Path, status, body)
	}
	return header.Get("Location"), err
}

// MostInAnyWindow returns the largest number of completions in any half-open window of
// length period.
func MostInAnyWindow(list []Completion, period time.Duration) (most int) {
	begin := 0
	for end := range list {
		for list[end].At.Sub(list[begin].At) >= period {
			begin++
		}
		most = max(most, end-begin+1)
	}
	return most
}
