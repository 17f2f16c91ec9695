package auth

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// TrustStore knows whom a tenant trusts.
type TrustStore interface {
	// Trust is the tenant's issuers with their rules, and its policy.
	Trust(ctx context.Context, t tenants.TenantID) (tenants.Trust, error)
	// Member finds a person or client that is admitted by name; NotFound when
	// there is none.
	Member(ctx context.Context, t tenants.TenantID, issuerID, subject string) (tenants.Member, error)
}

// Trusts is what challenges and metadata say of a tenant: an OAuth is one.
type Trusts interface {
	Trust(ctx context.Context, t tenants.TenantID) (tenants.Trust, error)
}

// trustView is a tenant's trust, prepared for looking things up.
type trustView struct {
	trust   tenants.Trust
	issuers []issuerView
}

// issuerView is one issuer with its settings resolved.
type issuerView struct {
	tenants.Issuer
	algorithms []string
	types      []string
	looks      []string // the claims that its rules and its tenant claim look at, sorted
	// print changes with every setting that a remembered verification rests on.
	print [sha256.Size]byte
}

func newTrustView(t tenants.Trust) trustView {
	v := trustView{trust: t}
	for _, i := range t.Issuers {
		v.issuers = append(v.issuers, newIssuerView(i))
	}
	return v
}

func newIssuerView(i tenants.Issuer) issuerView {
	v := issuerView{Issuer: i}
	for _, a := range algorithms() { // never more than these, whatever the settings say
		if len(i.Algorithms) == 0 || slices.Contains(i.Algorithms, string(a)) {
			v.algorithms = append(v.algorithms, string(a))
		}
	}
	for _, t := range i.Types {
		v.types = append(v.types, tokenType(t))
	}
	if len(v.types) == 0 {
		v.types = []string{"at+jwt"}
	}
	if i.TenantClaim != "" {
		v.looks = append(v.looks, i.TenantClaim)
	}
	for _, r := range i.Roles {
		if r.Claim != "" {
			v.looks = append(v.looks, r.Claim)
		}
	}
	slices.Sort(v.looks)
	v.looks = slices.Compact(v.looks)
	i.Roles, i.Name, i.DashboardClientID, i.Shared = nil, "", "", false // what no proof rests on
	i.CreatedAt, i.UpdatedAt = time.Time{}, time.Time{}
	raw, err := json.Marshal(struct {
		tenants.Issuer
		Secret []byte
		Looks  []string
	}{i, i.SealedSecret, v.looks})
	if err != nil {
		return issuerView{} // cannot happen; an issuer without a URL matches no token
	}
	v.print = sha256.Sum256(raw)
	return v
}

// tokenType is a typ header in its short, lower-case form. A JWT without one
// is a plain JWT (RFC 7519, section 5.1).
func tokenType(typ string) string {
	typ = strings.TrimPrefix(strings.ToLower(typ), "application/")
	if typ == "" {
		return "jwt"
	}
	return typ
}

func (v *trustView) byURL(url string) *issuerView {
	for i := range v.issuers {
		if v.issuers[i].URL == url && url != "" {
			return &v.issuers[i]
		}
	}
	return nil
}

func (v *trustView) byID(id string) *issuerView {
	for i := range v.issuers {
		if v.issuers[i].ID == id {
			return &v.issuers[i]
		}
	}
	return nil
}

func (v *trustView) opaque() bool {
	return slices.ContainsFunc(v.issuers, func(i issuerView) bool { return i.Opaque })
}

func (v *trustView) urls() string {
	var urls []string
	for _, i := range v.issuers {
		urls = append(urls, i.URL)
	}
	return clean(strings.Join(urls, " "), maxNoted)
}

// view is the tenant's trust of at most a few seconds ago. The zero tenant
// trusts nobody.
func (o *OAuth) view(ctx context.Context, t tenants.TenantID) (trustView, error) {
	if t.IsZero() {
		return trustView{}, nil
	}
	v, _, err := o.trusts.load(ctx, t.String(), 0, func(ctx context.Context) (trustView, bool, error) {
		trust, err := o.store.Trust(ctx, t)
		if fault.Is(err, fault.NotFound) {
			return trustView{}, false, nil
		}
		return newTrustView(trust), err == nil, err
	})
	return v, err
}

// Trust is whom the tenant trusts, as it was at most 3 s ago.
func (o *OAuth) Trust(ctx context.Context, t tenants.TenantID) (tenants.Trust, error) {
	v, err := o.view(ctx, t)
	return v.trust, err
}
