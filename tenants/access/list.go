package access

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// listing is one list, the newest first. sql takes the tenant, the time and id
// of the last row of the page before, the number of rows, and more.
type listing[T any] struct {
	what  string
	sql   string
	more  []any
	scan  pgx.RowToFunc[T]
	uuids bool // its ids are UUIDs
	key   func(T) (time.Time, string)
	keep  func(T) bool // what the caller may see
}

func list[T any](ctx context.Context, s *Service, sc tenants.Scope, l listing[T], cursor string, limit int) (out []T, next string, err error) {
	if err := sc.Require(tenants.Admin); err != nil {
		return nil, "", err
	}
	rows, _ := tenants.ClampRows(limit)
	at, id, err := parseCursor(cursor, l.uuids)
	if err != nil {
		return nil, "", err
	}
	out = []T{}
	for len(out) < rows {
		page, err := tenantdb.Query(ctx, s.db, sc.Tenant, l.sql, append([]any{sc.Tenant, at, id, rows}, l.more...), l.scan)
		if err != nil {
			return nil, "", fmt.Errorf("list %s: %w", l.what, err)
		}
		for _, row := range page {
			made, key := l.key(row)
			at, id = &made, &key
			if l.keep(row) {
				if out = append(out, row); len(out) == rows {
					return out, formatCursor(made, key), nil
				}
			}
		}
		if len(page) < rows {
			break
		}
	}
	return out, "", nil
}

func formatCursor(at time.Time, id string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(at.UnixMicro(), 10) + " " + id))
}

// parseCursor reads a cursor; an empty one gives nil, which is before all.
func parseCursor(cursor string, uuids bool) (at *time.Time, id *string, err error) {
	if cursor == "" {
		return nil, nil, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	micros, key, ok := strings.Cut(string(raw), " ")
	n, numErr := strconv.ParseInt(micros, 10, 64)
	if err != nil || !ok || numErr != nil || len(cursor) > 96 || strings.ContainsRune(key, 0) || n < 0 || n > 1e17 {
		return nil, nil, badCursor()
	}
	if uuids {
		u, err := uuid.Parse(key)
		if err != nil {
			return nil, nil, badCursor()
		}
		key = u.String()
	}
	t := time.UnixMicro(n).UTC()
	return &t, &key, nil
}

func badCursor() *fault.Error {
	return fault.Bad("cursor", "want the next_cursor of an earlier answer")
}
