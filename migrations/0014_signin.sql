-- Why:   people sign in to the dashboard at their tenant's identity provider: a
--        session stands for an operator token, or for what the provider said of
--        a person (auth.Facts: no credential), judged anew at each request.
-- Lock:  access exclusive on browser_session for a moment; the check reads it.
-- Size:  as before.

alter table browser_session
    alter column token_id drop not null,
    add column facts jsonb,
    add constraint browser_session_stands_for_one check ((token_id is null) <> (facts is null));
