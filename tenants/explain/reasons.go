package explain

import (
	"fmt"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// away looks whether a node is away.
func away(n Node) (string, bool) { return "the node is " + n.Status, n.Status != "online" }

// statusIs looks whether a node has one status.
func statusIs(status string) func(Node) (string, bool) {
	return func(n Node) (string, bool) { return "the node is " + n.Status, n.Status == status }
}

// off lists what is off on a node.
func off(n Node) (string, bool) {
	var list []string
	for _, o := range n.Off {
		list = append(list, "module "+o.Module)
	}
	for _, w := range n.Weak {
		if w.Level == string(inspector.Off) && len(list) < maxWeak {
			list = append(list, w.Component+"."+w.Signal+" ("+word(w.Reason)+")")
		}
	}
	if len(list) == 0 {
		return "nothing is off there", false
	}
	return "off are " + strings.Join(list, ", "), true
}

// kept looks whether data was kept out for a reason.
func kept(reason string) func(Node) (string, bool) {
	return func(n Node) (string, bool) {
		for _, k := range n.Kept {
			if k.Reason == reason {
				return fmt.Sprintf("%d reports were kept out for it, the last one %s", k.Count, stamp(k.LastAt)), true
			}
		}
		return "nothing was kept out for it", false
	}
}

const readAgain = "try again in a moment; give the operator the reference id if it stays"

func quotaBound(n int) string { return fmt.Sprintf("%d, unless the tenant's quotas say otherwise", n) }

// reasons is every word that a refusal may bear and that a caller can act on.
var reasons = map[string]reason{
	// a node's own
	inspector.ReasonPidGone:         {means: "no process has that pid on the node, or it ended meanwhile", next: `run profile_on_cpu {"cgroup":"/"} to see which processes use the CPU, then name one that runs`},
	inspector.ReasonUnknownDevice:   {means: "the node has no block device of that name", next: "take the name from metrics_summary of module storage"},
	inspector.ReasonUnknownIface:    {means: "the node has no network interface of that name", next: "take the name from metrics_summary of module network"},
	inspector.ReasonUnknownCgroup:   {means: "the node has no such control group or container", next: "take it from the rows of an earlier task"},
	inspector.ReasonFeatureOff:      {means: "the kernel, the agent's privileges or a switch keep off what this stands on", next: "call get_node: its capabilities say what is off and why", holds: off},
	inspector.ReasonUnknownKind:     {means: "there is no such kind of task, or the node's agent is older and does not know it", next: "call get_node to see the agent's version and what the node can do; upgrade the agent"},
	inspector.ReasonNotAllowed:      {means: "the node's own configuration forbids this kind of task; no server can lift that", next: "ask whoever runs the node to allow it"},
	inspector.ReasonScope:           {means: "the credential lacks the scope that this needs", next: "step up to the scopes that the challenge names, or ask a tenant administrator for a token with that scope"},
	inspector.ReasonTooManyTraces:   {means: "the node runs as many traces as it may", bound: fmt.Sprintf("%d traces a node", inspector.NodeTraces), next: "wait for one to end, or cancel one"},
	inspector.ReasonTooManyHeavy:    {means: "the node runs a heavy task already", bound: fmt.Sprintf("%d heavy task a node", inspector.NodeHeavy), next: "wait for it to end, or cancel it"},
	inspector.ReasonTooManyQueries:  {means: "the node answers as many queries as it may", bound: fmt.Sprintf("%d queries a node", inspector.NodeQueries), next: "try again in a moment"},
	inspector.ReasonLate:            {means: "the request reached the node after it had to begin, so it never began", next: "start the task again"},
	inspector.ReasonDuplicateTask:   {means: "the node has a task of this id already", next: "look at the ticket"},
	inspector.ReasonBudget:          {means: "the agent is over its own budget and takes no work", next: "list_events of the kind agent_budget says which budget; then try a shorter or narrower task"},
	inspector.ReasonMemory:          {means: "the task reached its memory budget", next: "narrow the target"},
	inspector.ReasonAgentRestarted:  {means: "the agent was started anew while the task ran, and the task ended with its former life", next: "see what restarted it, then start the task again"},
	inspector.ReasonAgentStopping:   {means: "the agent was stopping", next: "start the task again when the node is back", holds: away},
	inspector.ReasonTaskPanicked:    {means: "a defect of the agent ended the task; the agent itself went on", next: "report it with the agent's version; try another target"},
	inspector.ReasonTaskFailed:      {means: "the task failed on the node, as its message says", next: "read the message; try again with another target"},
	inspector.ReasonResultTooLarge:  {means: "the result did not fit", bound: fmt.Sprintf("%d KiB a result", inspector.MaxResultBytes>>10), next: "narrow the target or the duration"},
	inspector.ReasonInvalidArgument: {means: "an argument is malformed or outside its bounds; none is clamped", next: "see the tool's arguments and their bounds"},

	// arguments
	"unknown_argument":  {means: "the tool takes no argument of that name", next: "see the tool's arguments"},
	"out_of_bounds":     {means: "a number lies outside its bounds; it is not clamped", bound: fmt.Sprintf("%d s for a duration, others as the tool says", inspector.MaxTaskSeconds), next: "send a value within the bounds"},
	"malformed":         {means: "a value has the wrong form", next: "see what the field wants"},
	"no_target":         {means: "the task is costly without a target and got none", next: `send the tool's target: for profile_on_cpu "cgroup":"/" is the whole machine; devices are in metrics_summary of module storage, interfaces in that of network`},
	"one_subject":       {means: "explain takes exactly one subject", next: "send the one that the question is about"},
	"node_and_selector": {means: "node and selector exclude each other", next: "send one of them"},
	"no_node":           {means: "the call does not say where", next: "send node or selector"},

	// nodes
	"unknown_node":         {means: "no node in your reach has that id or name", next: "call list_nodes to see their ids and names"},
	"ambiguous_node":       {means: "several nodes bear that name", next: "name the node by its id"},
	"no_nodes":             {means: "no node in your reach bears all of these labels", next: "call list_nodes to see their labels"},
	"too_many_nodes":       {means: "the selector matches more nodes than one call may ask", bound: "50 nodes a call", next: "add a label"},
	"node_offline":         {means: "the node has no open stream", next: "explain the node", holds: statusIs("offline")},
	"node_stale":           {means: "the node's stream is open and silent", bound: tenants.NodeStaleAfter.String() + " of silence", next: "explain the node", holds: statusIs("stale")},
	"node_never":           {means: "no agent of the node ever opened a stream", next: "start the agent on the machine", holds: statusIs("never")},
	"node_quarantined":     {means: "the node's clock is too far off", bound: tenants.SkewCorrected.String() + " of skew", next: "set the clock of the machine", holds: statusIs("quarantined")},
	"node_duplicate":       {means: "two agents use the node's identity at once", next: "enrol one of the machines anew", holds: statusIs("duplicate")},
	"duplicate_identity":   {means: "two agents use the node's identity at once", next: "enrol one of the machines anew", holds: statusIs("duplicate")},
	"node_revoked":         {means: "the node's certificate was revoked", next: "enrol the machine anew if it shall come back", holds: statusIs("revoked")},
	"node_disconnected":    {means: "the node lost its connection while the task ran and did not come back in time", bound: "5 s to come back", next: "explain the node, then start the task again", holds: away},
	"node_connection_lost": {means: "the node's connection broke a moment ago; the task ends unless it comes back", bound: "5 s to come back", next: "look at the ticket in a moment", holds: away},

	// tasks
	"not_delivered":  {means: "the request did not reach the node", next: "start the task again", holds: away},
	"task_lost":      {means: "the database lost the task in a crash right after it began", next: "start the task again"},
	"not_started":    {means: "no server process that holds the node, or not the node itself, took the request in time", bound: "5 s to begin", next: "try again in a moment; explain the node if it stays", holds: away},
	"timed_out":      {means: "the node did not end the task by its deadline, so the server did", next: "start it again, shorter or narrower"},
	"cancelled":      {means: "it was cancelled on request", next: "nothing is left to do"},
	"abandoned":      {means: "the caller went away, and the task ended with the call", next: "start it again and stay, or take a longer one with a ticket"},
	"unknown_ticket": {means: "no task in your reach has that ticket", next: "use the ticket_id that the task's first answer gave"},
	"ticket_expired": {means: "the result was deleted after its time", bound: "24 h", next: "start the task again"},
	"too_many_tasks": {means: "the tenant has as many active tasks as it may", bound: "128 tasks a tenant; a fan-out is one", next: "wait for some to end, or cancel some"},
	"task_running":   {means: "the task has not ended, so it has no result yet", next: "look at the ticket in a moment"},
	"no_result":      {means: "the task ended without a result", next: "explain the task"},

	// events
	"unknown_event":   {means: "no event in your reach has that id or is of that kind; of a node's report, the agent is newer than the server", next: "take the id from list_events", holds: kept("unknown_event")},
	"too_many_events": {means: "the node made more records of one kind of event within an hour than are taken", bound: "250 records of a kind an hour", next: "list_events of the node shows what storms", holds: kept("too_many_events")},

	// data kept out
	"clock_skew":          {means: "the node's clock is too far from the server's to be corrected", bound: tenants.SkewCorrected.String(), next: "set the clock of the machine", holds: kept("clock_skew")},
	"too_old":             {means: "the data was older than what is accepted in replay", bound: tenants.MaxReplayAge.String(), next: "nothing: it cannot be taken in any more", holds: kept("too_old")},
	"future":              {means: "the data lies in the server's future", next: "set the clock of the machine", holds: kept("future")},
	"too_many_series":     {means: "the node, or a question, has more series than are told apart", bound: fmt.Sprintf("%d series a node", tenants.MaxSeriesPerNode), next: "see which labels grow; filter the question", holds: kept("too_many_series")},
	"bad_span":            {means: "the report ends before it starts, or spans too long", next: "set the clock of the machine; report it with the agent's version if it stays", holds: kept("bad_span")},
	"refused_by_database": {means: "the server's database took none of the report", next: "ask whoever runs the server to look at its log", holds: kept("refused_by_database")},
	"unknown_layout":      {means: "the agent sent values of a set of series that the server had not seen; it asks for it by itself", next: "nothing: the agent sends it again"},

	// credentials and limits
	"no_credential":    {means: "no verified credential came with the call", next: "send a bearer token of this tenant"},
	"token_expired":    {means: "the token's time is over", next: "ask a tenant administrator for a new one"},
	"tenant_suspended": {means: "the tenant is suspended", next: "ask whoever runs the server"},
	"too_much_data":    {means: "the answer would read more than one question may", next: "narrow from and to, name one node, or filter by labels"},
	"too_many_calls":   {means: "more calls are under way than are taken at once", next: "wait for some to end"},
	"rate_limited":     {means: "the principal, or its whole tenant, used up its requests a minute; the quota comes back evenly over a minute", bound: fmt.Sprintf("%d a minute of a principal and %d of a tenant, unless the tenant's policy says otherwise", tenants.DefaultPrincipalRate, tenants.DefaultTenantRate), next: "wait as long as the answer says, and ask for more with one call"},
	"unknown_document": {means: "fetch got an id that names no document", next: "call search, and send an id of its results"},
	"answer_too_large": {means: "the answer does not fit its budget", bound: fmt.Sprintf("%d KiB", tenants.MaxAnswerBytes>>10), next: "ask for fewer rows"},
	"body_too_large":   {means: "the request is too large", bound: fmt.Sprintf("%d KiB", tenants.MaxRequestBytes>>10), next: "send less"},
	"rate":             {means: "calls came faster than they are taken", next: "wait, then go on more slowly"},
	"deadline":         {means: "the answer did not come in time", next: "ask for less, or try again"},

	"method_not_allowed": {means: "the path takes no such method", next: "see the API's description"},
	"not_over_rest":      {means: "this kind of task is not offered over REST", next: "use the tool"},
	"mcp_off":            {means: "the tools are switched off for this server or tenant", next: "ask whoever runs the server; REST answers"},
	"invalid_message":    {means: "the request is not one JSON-RPC message that this endpoint takes", next: "read the error's own message, correct the client's request or URL, and send one message a POST"},
	"foreign_origin":     {means: "a browser sent the call from another site", next: "call from the product's own pages, or with a bearer token"},
	"no_certificate":     {means: "an agent came without its client certificate", next: "enrol the machine"},
	"not_a_node":         {means: "only an enrolled node reports", next: "use the node's client certificate"},
	"outside_selector":   {means: "it concerns nodes that the credential does not reach", next: "ask an administrator whose credential is not limited to some nodes, or for a wider selector"},
	"unknown_token":      {means: "no operator token has that id", next: "list the tokens"},
	"unknown_session":    {means: "the stream is gone", next: "nothing: the agent opens another"},
	"canceled":           {means: "the caller went away before the answer", next: "ask again and stay"},
	"invalid_text":       {means: "text must be valid UTF-8 without zero bytes", next: "send clean text"},
	"no_such_row":        {means: "the result has no such row", next: "see the rows with check_task_result"},
	"ambiguous_row":      {means: "several rows of the result carry these labels", next: "send row, or more of the row's labels"},
	"no_finding":         {means: "the call does not say which finding", next: "send row, or labels"},

	// of REST's own
	"invalid_body":            {means: "the request's body is not the JSON object that the address takes", next: "see the address in /api/v1/openapi.yaml"},
	"unknown_parameter":       {means: "the address takes no such query parameter", next: "the refusal lists those that it takes"},
	"route_unknown":           {means: "there is no such address", next: "see /api/v1/openapi.yaml"},
	"too_many_streams":        {means: "as many event streams are open as one principal, tenant or server may have", next: "close one, or poll the list"},
	"credential_no_token":     {means: "the call brought no credential", next: "send Authorization: Bearer with a token of this tenant"},
	"credential_malformed":    {means: "the credential has no form that is accepted here", next: "copy the token anew, whole"},
	"credential_checksum":     {means: "the token is mistyped or cut", next: "copy the token anew, whole"},
	"credential_unknown":      {means: "no such token was issued by this tenant", next: "use a token of this tenant"},
	"credential_expired":      {means: "the credential's time is over", next: "ask a tenant administrator for a new one"},
	"credential_revoked":      {means: "the credential was withdrawn", next: "ask a tenant administrator for a new one"},
	"credential_wrong_tenant": {means: "the credential is good for another tenant", next: "use the address of its own tenant, or a token of this one"},
	"credential_network":      {means: "the credential may not be used from this network", next: "call from a network on its list"},

	// of the door: what is said of a token of an issuer
	"credential_repeated":           {means: "the request carries more than one Authorization header", next: "send exactly one"},
	"credential_suspended":          {means: "the tenant is suspended, so no credential of it is accepted", next: "an administrator of the tenant resumes it over REST, unless the operator of the server suspended it"},
	"credential_csrf":               {means: "a write with a dashboard session came without the session's CSRF token, or from another site", next: "send the header Telltale-CSRF; the session's answer holds it"},
	"credential_issuer":             {means: "the token's issuer is not one that the tenant trusts", next: "sign in at the provider that the resource metadata names; an administrator compares iss to the letter"},
	"credential_signature":          {means: "no key of the issuer fits the token's signature", next: "get a new token; if it stays, an administrator runs the issuer's test"},
	"credential_algorithm":          {means: "the token is signed in a way that is not accepted: only asymmetric signatures are", next: "let the provider sign access tokens with RS256, ES256 or the like"},
	"credential_type":               {means: "this is no access token of a type that the tenant accepts; an ID token is none", next: "send the access token; an administrator sets the issuer's accepted types if the provider marks them otherwise"},
	"credential_audience":           {means: "the token is made for another resource", next: "ask the provider for a token with the tenant's MCP URL as its resource"},
	"credential_tenant":             {means: "the token lacks the claim that ties it to this tenant", next: "sign in with an account of this tenant"},
	"credential_not_yet":            {means: "the token's time has not come", next: "compare the clocks of the provider and of the server"},
	"credential_inactive":           {means: "the issuer does not, or no longer, vouch for the token", next: "sign in again"},
	"credential_cnf":                {means: "the token is bound to a key, which is not supported", next: "let the provider issue plain bearer tokens for this resource"},
	"credential_claims":             {means: "a needed claim is missing, doubled or of a wrong form", next: "let the provider issue tokens with iss, sub, aud and exp"},
	"credential_no_role":            {means: "the token is good, but its holder has no role in this tenant", next: "ask an administrator for a role or a membership; signing in again changes nothing"},
	"credential_no_scope":           {means: "the token is good and its holder has a role, but it holds none of the scopes", next: "ask the provider for the scopes that the challenge names"},
	"credential_scope":              {means: "a good credential lacks the scope that the call needs", next: "step up to the scopes that the challenge names, or ask an administrator for a role with it"},
	"credential_issuer_unreachable": {means: "the token's issuer does not answer, and nothing is known of its keys or of this token", next: "try again in some seconds; an administrator runs the issuer's test"},
	"issuer_unreachable":            {means: "the identity provider does not answer, or not as one does", next: "try again in some seconds; an administrator runs the issuer's test"},
	"credential_foreign_origin":     {means: "a browser sent the call from a web origin that is not allowed", next: "call from the product's own pages, or have the origin added to the server's allowed origins"},
	"credential_sign_in_over":       {means: "the answer belongs to no sign-in that this browser has under way", next: "start the sign-in again, in one window, and finish it within ten minutes"},
	"credential_sign_in_refused":    {means: "the identity provider gave no tokens", next: "start the sign-in again; an administrator sees what the provider said"},
	"no_sign_in":                    {means: "the tenant has no identity provider with a client for the dashboard", next: "sign in with an operator token; an administrator sets the issuer's dashboard client"},
	"foreign_host":                  {means: "the server does not answer for the host that the call names", next: "use the server's public URL"},
	"unknown_tenant":                {means: "there is no such tenant", next: "check the tenant in the URL"},
	"unknown_resource":              {means: "no protected resource has its metadata there", next: "ask for the metadata of /t/TENANT/mcp"},
	"reference_unknown":             {means: "nothing is kept of this reference id: it is older than a day, of another tenant, or of a refusal that is not about connecting", next: "repeat what was refused; an administrator also looks into the audit"},

	// of administration
	"quota_tokens":          {means: "the tenant has as many operator tokens as it may", bound: quotaBound(tenants.DefaultMaxTokens), next: "revoke one, or have the quota raised"},
	"quota_issuers":         {means: "the tenant has as many issuers as it may", bound: quotaBound(tenants.DefaultMaxIssuers), next: "remove one, or have the quota raised"},
	"quota_members":         {means: "the tenant has as many members as it may", bound: quotaBound(tenants.DefaultMaxMembers), next: "remove one, or use a role rule for many"},
	"quota_enrol_tokens":    {means: "the tenant has as many live enrolment tokens as it may", bound: quotaBound(tenants.DefaultMaxEnrolTokens), next: "revoke one, or wait for one to expire"},
	"quota_nodes":           {means: "the tenant has as many nodes as it may", bound: quotaBound(tenants.DefaultMaxNodes), next: "revoke nodes that are gone, or have the quota raised"},
	"already_exists":        {means: "it exists already", next: "look at the one that is there"},
	"changed_meanwhile":     {means: "somebody changed it since it was read", next: "read it again and repeat the change on what it is now"},
	"issuer_exists":         {means: "the tenant trusts this issuer already", next: "change the one that is there"},
	"issuer_secret":         {means: "the issuer's client secret is missing where it is needed, or must be given again", next: "send the client secret"},
	"issuer_shared":         {means: "another tenant trusts the same provider, so a rule for everybody would let its people in", next: "set the issuer's tenant claim, or name groups or members of this tenant"},
	"issuer_test_failed":    {means: "the identity provider did not answer as it must, so it was not stored", next: "mend the steps that failed, or store it all the same with force"},
	"issuer_taken":          {means: "another tenant trusts this provider with a rule for everybody, which would let your people in there", next: "ask the operator of the server: 'telltaled issuer tenants URL' shows which tenant has to set a tenant claim, or to give its rules one"},
	"member_exists":         {means: "the issuer's subject is a member already", next: "change the member that is there"},
	"unknown_issuer":        {means: "the tenant has no such issuer", next: "list the issuers"},
	"unknown_member":        {means: "the tenant has no such member", next: "list the members"},
	"unknown_enrol_token":   {means: "the tenant has no such enrolment token", next: "list the enrolment tokens"},
	"private_address":       {means: "the URL leads to an address that is not public, where this server does not look", next: "name a public address, or have the network added to the server's issuer-networks"},
	"not_exported":          {means: "no export of the tenant was completed within 24 hours, so it is not deleted", next: "fetch tenant/export first, or say that none is wanted"},
	"too_many_exports":      {means: "an export of the tenant, or as many as the server makes at once, is under way", next: "try again in some minutes"},
	"suspended_by_operator": {means: "the operator of the server suspended the tenant, so nobody of it resumes it", next: "ask the operator of the server"},
	"slug_taken":            {means: "the slug is or was in use, and slugs are never reused", next: "choose another slug"},
	"audit_unavailable":     {means: "the act could not be recorded, so it did not happen", next: readAgain},
	"entries_lost":          {means: "the audit had no room for some entries, and says so in their place", next: "the operator of the server looks at telltale_audit_dropped_total"},
	"no_sealing_key":        {means: "the command has no key to seal the issuer's client secret with", next: "name the server's key file with --key-file"},
	"settings_changing":     {means: "somebody else changes the same settings at this moment", next: "try again in a moment"},

	// of certificates and enrolment
	"certificate_expired":       {means: "the node's client certificate, or the authority behind it, is past its time", next: "compare the clocks of the node and of the server; an administrator decides whether the machine is enrolled anew"},
	"certificate_not_yet_valid": {means: "the time of the node's client certificate has not come", next: "set the clocks right and keep the node's identity"},
	"foreign_certificate":       {means: "the client certificate is not from the authority of the tenant that it names, or not made for a node", next: "check the server's address, and keep the node's identity"},
	"malformed_certificate":     {means: "the client certificate names no node of this server", next: "check the server's address, and keep the node's identity"},
	"no_authority":              {means: "the authority that signs the tenant's nodes is gone", next: "ask whoever runs the server"},
	"malformed_token":           {means: "this is no enrolment token", next: "copy the enrolment token anew, whole; an operator token enrols nothing"},
	"bad_checksum":              {means: "the enrolment token is mistyped or cut", next: "copy it anew, whole"},
	"token_revoked":             {means: "the enrolment token was withdrawn", next: "ask an administrator of the tenant for a new one"},
	"token_spent":               {means: "every use of the enrolment token is spent", next: "ask an administrator of the tenant for a new one"},

	// of the requests themselves
	"mcp_disabled_server":   {means: "the tools are switched off on this server", next: "use REST, or ask whoever runs the server"},
	"mcp_disabled_tenant":   {means: "the tools are switched off for this tenant", next: "use REST; an administrator of the tenant switches them on"},
	"not_offered_stateless": {means: "the method needs a session, and the server keeps none", next: "use what the refusal names instead"},
	"unknown_tool":          {means: "there is no such tool for this credential and URL", next: "list the tools"},
	"method":                {means: "the address takes no such method", next: "see the API's description"},
	"media_type":            {means: "the body is not declared as JSON", next: "send Content-Type: application/json"},
	"body_timeout":          {means: "the body did not arrive in time", next: "send it again, at once and whole"},
	"body_unreadable":       {means: "the body ended before its declared length", next: "send it again, whole"},
	"query_too_long":        {means: "the query string is longer than is read", next: "send fewer or shorter parameters"},
	"client_closed":         {means: "the caller went away before the answer", next: "ask again and stay"},
	"not_found":             {means: "there is no such object in your reach", next: "take the name from a present list"},
	"reference":             {means: "something that this refers to is gone, or something still refers to this", next: "read both again, then decide"},

	// why a node is not covered by an answer
	"offline":     {means: "the node has no open stream, so it cannot have told everything", next: "explain the node", holds: statusIs("offline")},
	"stale":       {means: "the node's stream is open and silent", bound: tenants.NodeStaleAfter.String() + " of silence", next: "explain the node", holds: statusIs("stale")},
	"never":       {means: "no agent of the node ever opened a stream", next: "start the agent on the machine", holds: statusIs("never")},
	"quarantined": {means: "the node's clock is too far off, and its new data is kept out", bound: tenants.SkewCorrected.String() + " of skew", next: "set the clock of the machine", holds: statusIs("quarantined")},
	"duplicate":   {means: "two agents use the node's identity at once", next: "enrol one of the machines anew", holds: statusIs("duplicate")},
	"revoked":     {means: "the node's certificate was revoked", next: "enrol the machine anew if it shall come back", holds: statusIs("revoked")},
	"off":         {means: "the component is switched off or all its signals are off on the node", next: "call get_node: its capabilities say what is off and why", holds: off},
	"no_data":     {means: "the node is online and sent nothing of this within the window", next: "take a longer window, or explain the node", holds: away},

	// the server's own
	"database_unavailable": {means: "the server's database does not answer", next: readAgain},
	"database_busy":        {means: "the server's database has no connection free, or other work is in the way", next: readAgain},
	"database_deadline":    {means: "the server's database did not answer in time", next: "ask for less, or try again"},
	"database_read_only":   {means: "the server's database takes no writes at this moment", next: readAgain},
	"database":             {means: "the server failed to use its database", next: readAgain},
	"bad_dsn":              {means: "the server cannot read a connection string of its database", next: "ask whoever runs the server to correct its settings"},
	"login_refused":        {means: "the database refuses the server's login", next: "ask whoever runs the server to correct its settings"},
	"role_missing":         {means: "the server's database user is no member of the role that it needs", next: "ask whoever runs the server to prepare the database"},
	"role_bypasses":        {means: "the server's database user would not be held to one tenant's rows, so the server refuses to use it", next: "ask whoever runs the server to take a plain user"},
	"schema_behind":        {means: "the database lacks migrations that the server needs", next: "ask whoever runs the server to apply them"},
	"server_stopping":      {means: "this server process was stopping", next: "try again: another one answers"},
	"internal":             {means: "the server failed; it is no fault of the call", next: readAgain},
}
