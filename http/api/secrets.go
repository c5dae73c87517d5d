package api

import "takt/store"

// Secret describes a secret. Nothing shows its value.
type Secret struct {
	Name string `json:"name"`
	// AllKeys is true if the builds of all keys may have it, else those of Keys.
	AllKeys bool     `json:"all_keys"`
	Keys    []string `json:"keys"`
	// Masked is true if workers leave the value out of logs, errors and reports.
	Masked bool `json:"masked"`
	// Binary is true if the value is no text: builds can have it as a file only.
	Binary    bool   `json:"binary"`
	CreatedBy string `json:"created_by"`
	CreatedAt string `json:"created_at" schema:"Time"`
	UpdatedBy string `json:"updated_by"`
	UpdatedAt string `json:"updated_at" schema:"Time"`
}

// NewSecret converts a secret.
func NewSecret(s store.Secret) Secret {
	return Secret{
		Name: s.Name, AllKeys: s.AllKeys, Keys: append([]string{}, s.Keys...), Masked: s.Mask, Binary: s.Binary,
		CreatedBy: s.CreatedBy, CreatedAt: FormatTime(s.CreatedAt), UpdatedBy: s.UpdatedBy, UpdatedAt: FormatTime(s.UpdatedAt),
	}
}

// Secrets answers GET /admin/secrets, by name.
type Secrets struct {
	Secrets []Secret `json:"secrets"`
}

// SecretName is the name of a secret in a path.
type SecretName string

// ReadParam implements [Param].
func (n *SecretName) ReadParam(_, sent string) error {
	*n = SecretName(sent)
	return store.CheckSecretName(sent)
}

// SetSecretIn is the input of SetSecret.
type SetSecretIn struct {
	Name SecretName    `path:"name"`
	Body SecretContent `body:"json"`
}

// SecretContent is the body of PUT /admin/secrets/:name.
type SecretContent struct {
	// Value is 1 to 65536 bytes.
	Value []byte `json:"value"`
	// Keys are the names of the keys whose builds may have it; AllKeys, instead, gives it to the
	// builds of all keys and of the API key.
	Keys    []string `json:"keys,omitempty" max:"100"`
	AllKeys bool     `json:"all_keys,omitempty"`
	// NoMask has workers leave the value in logs. Only such a value may have less than 6 bytes.
	NoMask bool `json:"no_mask,omitempty"`
	// Reason goes into the audit.
	Reason string `json:"reason,omitempty" max:"1000"`
}

// RemoveSecretIn is the input of RemoveSecret.
type RemoveSecretIn struct {
	Name SecretName `path:"name"`
	Why
}

// Check implements [Checker].
func (s *SecretContent) Check() error { return cleanReason(&s.Reason) }

// ListSecrets is GET /admin/secrets.
var ListSecrets = declare[None, Secrets](buildOrders, AdminKey, scopeOperate, Ops, "GET /admin/secrets", Route{
	ID: "listSecrets", Strict: true, Summary: "List the secrets, without their values",
})

// SetSecret is PUT /admin/secrets/:name.
var SetSecret = declare[SetSecretIn, Secret](buildOrders, AdminKey, scopeOperate, Ops, "PUT /admin/secrets/:name", Route{
	ID: "setSecret", Strict: true, Errors: []int{409}, Summary: "Set a secret",
	Text: "It replaces all that the secret was, so nobody gives a value to more keys without knowing it. Builds that wait get the value that the secret has when they are handed out.",
	Says: "The secret as it is now.",
})

// RemoveSecret is DELETE /admin/secrets/:name.
var RemoveSecret = declare[RemoveSecretIn, None](buildOrders, AdminKey, scopeOperate, Ops, "DELETE /admin/secrets/:name", Route{
	ID: "removeSecret", Strict: true, Errors: []int{400}, Status: 204, Summary: "Remove a secret", Says: "The secret is removed.",
	Text: "Builds that wait and ask for it fail when they are handed out.",
})
