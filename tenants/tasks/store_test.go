package tasks

import (
	"fmt"
	"testing"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// Every statement fits the migrated schema, and is known to the role that runs
// it.
func TestPrepare(t *testing.T) {
	dsn := dbtest.DSN(t)
	args := make([]any, 2)
	only := visible(tenants.Selector{IDs: []tenants.NodeID{{1}}, Labels: map[string]string{"a": "b", "c": "d"}}, &args)
	for role, list := range map[string][]string{
		"telltale_app": {sqlStart, sqlStartFound, sqlStartFree, sqlInsertEnded, sqlCountActive, sqlLockTask, sqlEndRun, sqlCloseTask, sqlNodesOf, sqlAskCancel, sqlTask,
			sqlRuns + only + sqlRunsTail, sqlSkipped + only, sqlStates, sqlList + sqlListAll + " limit 1", sqlList + fmt.Sprintf(sqlListSome, only, only)},
		"telltale_ingest": {sqlLockTask, sqlEndRun, sqlPutResult, sqlCloseTask, sqlEndAlone, sqlUnclaimed, sqlClaim, sqlRenew, sqlProgress, sqlPutPartials, sqlEnded,
			sqlTurn, sqlOfNode, sqlAdopt, sqlLetGo, sqlSignatures},
		"telltale_jobs": {sqlTryLockTask, sqlEndRun, sqlCloseTask, sqlDue, sqlStandings, sqlExpireTasks, sqlForget},
	} {
		conn := dbtest.Connect(t, dbtest.As(t, dsn, role))
		for i, sql := range list {
			if _, err := conn.Prepare(t.Context(), fmt.Sprintf("q%d", i), sql); err != nil {
				t.Errorf("%s: %v\n%s", role, err, sql)
			}
		}
	}
}
